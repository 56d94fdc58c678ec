"""Models and optimizers under CrossBarrier, and the errors of wrong use."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable

import torch
from frameworks.torch_cross_barrier_training import Optimizer, assert_same_bits, crossed, plain, plain_loop, sgd
from frameworks.torch_training import data, mlp, my_share
from support.expect import expect_error
from torch import nn

import byteps.torch as bps
from byteps.errors import InvalidArgumentError, UnsupportedError


def case_the_model_outlives_its_optimizer() -> None:
    def train() -> nn.Module:
        torch.manual_seed(1)
        model = mlp()
        optimizer = crossed(model, sgd(model))
        plain_loop(model, optimizer, *map(my_share, data(0)))
        return model

    model = train()
    gc.collect()
    x = data(1)[0]
    with torch.no_grad():
        got = model(x)
    torch.manual_seed(1)
    expected = mlp()
    plain_loop(expected, plain(expected, sgd(expected)), *map(my_share, data(0)))
    assert torch.equal(got, expected(x))
    alive = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert alive() is None


def case_they_stay_what_they_are() -> None:
    torch.manual_seed(1)
    model = mlp()
    raw = torch.optim.AdamW(model.parameters())
    optimizer = crossed(model, raw)
    assert optimizer is raw and isinstance(optimizer, torch.optim.AdamW) and type(optimizer).__name__ == "AdamW"
    assert isinstance(model, nn.Sequential) and type(model).__name__ == "Sequential"
    plain_loop(model, optimizer, *map(my_share, data(0)))
    assert type(copy.deepcopy(optimizer)) is torch.optim.AdamW
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert type(other) is nn.Sequential
        assert all(map(torch.equal, other.parameters(), model.parameters()))
        plain_loop(other, sgd(other), *data(1))  # trains on its own
        assert not torch.equal(other[0].weight, model[0].weight)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    plain_loop(model, optimizer, *map(my_share, data(1)))
    after = copy.deepcopy(model.state_dict())
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    plain_loop(model, optimizer, *map(my_share, data(1)))
    assert all(map(torch.equal, model.state_dict().values(), after.values()))


def case_wrong_arguments() -> None:
    model = mlp()

    class Other(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            super().step()

    for error, optimizer, options, part in (
        (UnsupportedError, torch.optim.LBFGS(model.parameters()), {}, "LBFGS"),
        (UnsupportedError, Other(model.parameters()), {}, "per_parameter=True"),
        (InvalidArgumentError, sgd(mlp()), {}, "6 of the optimizer's 6 parameters"),
        (InvalidArgumentError, sgd(model), {"backward_passes_per_step": 0}, "backward_passes_per_step is 0"),
        (InvalidArgumentError, sgd(model), {"bucket_cap_mb": -1}, "bucket_cap_mb is -1"),
        (InvalidArgumentError, sgd(model), {"named_parameters": [("a", p) for p in model.parameters()]}, "twice"),
        (InvalidArgumentError, plain(model, sgd(model)), {}, "distributed already, or has a CrossBarrier"),
    ):
        with expect_error(error, part):
            crossed(model, optimizer, **options)
    with expect_error(InvalidArgumentError, "pass model.module"):
        wrapped = bps.DistributedDataParallel(mlp())
        crossed(wrapped, sgd(wrapped))
    crossed(model, sgd(model))
    with expect_error(InvalidArgumentError, "has a CrossBarrier already"):
        crossed(model, sgd(model))
    assert_same_bits(make_optimizer=lambda m: Other(m.parameters(), lr=0.1), per_parameter=True)
    if bps.size() > 1:
        other = nn.Linear(2 + bps.rank(), 2)
        with expect_error(InvalidArgumentError, "CrossBarrier", "differ"):
            crossed(other, sgd(other)).synchronize()


def case_what_it_cannot_be_combined_with() -> None:
    if bps.size() == 1:
        return  # one rank sends nothing
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    refused: dict[str, tuple[Callable[[nn.Module, Optimizer], object], str]] = {
        "clipping": (
            lambda m, o: (nn.utils.clip_grad_norm_(m.parameters(), 1e-3), o.step()),
            "changed while it was in flight",
        ),
        "scaling": (lambda m, o: (m[0].weight.grad.mul_(2), o.step()), "optimizer.synchronize()"),
        "dropping": (lambda m, o: (m.zero_grad(), o.step()), "changed while it was in flight"),
        "scaler": (lambda m, o: scaler.step(o), "optimizer.synchronize()"),
        "closure": (lambda m, o: o.step(lambda: None), "step(closure)"),
        "zero_grad": (lambda m, o: o.zero_grad(), "zero_grad() while"),
        "twice": (
            lambda m, o: nn.functional.cross_entropy(m(data(0)[0]), data(0)[1]).backward(),
            "more gradients than",
        ),
    }
    for what, (action, part) in refused.items():
        for fused in (False, True):
            if what == "scaler" and not fused:
                continue
            torch.manual_seed(1)
            model = mlp()
            optimizer = crossed(model, torch.optim.SGD(model.parameters(), lr=0.1, fused=fused))
            x, y = map(my_share, data(0))
            loss = nn.functional.cross_entropy(model(x), y)
            (scaler.scale(loss) if what == "scaler" else loss).backward()
            with expect_error(InvalidArgumentError, part):
                action(model, optimizer)
            optimizer._lazy._wait([])  # the next case's push_pulls must not meet these
