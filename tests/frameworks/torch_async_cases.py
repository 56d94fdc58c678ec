"""Asynchronous training, compared with synchronous training, and the rules of its optimizer."""

from __future__ import annotations

import copy
import math
import pickle
from types import SimpleNamespace
from unittest import TestCase, mock

import torch
from frameworks.torch_training import assert_same_training, data, forward_backward, mlp, my_share, sgd
from support.expect import expect_error
from torch import nn

import byteps.torch as bps
from byteps.errors import InvalidArgumentError
from byteps.torch import asynchronous

Optimizer = torch.optim.Optimizer
STALENESSES = (0, 1, 4, math.inf)


def counter(lr: float = 1.0) -> tuple[nn.Parameter, Optimizer]:
    """A weight that every step of plain SGD makes larger by `lr`, if its gradient is -1."""
    weight = nn.Parameter(torch.zeros(3))
    return weight, torch.optim.SGD([weight], lr=lr)


def count(weight: nn.Parameter, optimizer: Optimizer) -> None:
    weight.grad = -torch.ones_like(weight)
    optimizer.step()


def differs_between_ranks(tensor: torch.Tensor) -> bool:
    least, most = (bps.push_pull(tensor.detach(), op=op) for op in (bps.Min, bps.Max))
    return not torch.equal(least, most)


def case_without_staleness_it_is_synchronous_training() -> None:
    assert_same_training(asynchronous=True, staleness=0)
    assert_same_training(
        make_optimizer=lambda m: torch.optim.SGD(
            m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
        asynchronous=True,
        staleness=0,
    )


def case_sum_instead_of_average_is_noticed() -> None:
    if bps.size() > 1:  # a wrong result exceeds the tolerance
        with expect_error(AssertionError, "differs by"):
            assert_same_training(asynchronous=True, staleness=0, op=bps.Sum)


def case_what_trains_synchronously_all_the_same_says_so() -> None:
    asked = SimpleNamespace(config=SimpleNamespace(asynchronous=True))
    with mock.patch.object(asynchronous, "current_job", lambda: asked):
        for name, wrap in {
            "DistributedDataParallel": bps.DistributedDataParallel,
            "CrossBarrier": cross_barrier,
        }.items():
            with TestCase().assertLogs("byteps", "WARNING") as logs:
                wrap(mlp())
            assert f"{name} trains synchronously" in logs.output[0], logs.output
    with TestCase().assertNoLogs("byteps", "WARNING"):
        bps.DistributedDataParallel(mlp())


def cross_barrier(model: nn.Module) -> Optimizer:
    return bps.CrossBarrier(model, sgd(model))


def case_without_staleness_all_ranks_have_the_same_bits() -> None:
    torch.manual_seed(0)
    model = mlp()
    # Adam's updates have all sizes, so a sum in another order would differ.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), asynchronous=True, staleness=0)
    for number in range(5):
        x, y = data(number)
        optimizer.zero_grad()
        forward_backward(model, my_share(x), my_share(y))
        optimizer.step()
        assert not any(differs_between_ranks(parameter) for parameter in model.parameters())


def case_training_converges_as_the_synchronous_one_does() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(240, 8, generator=generator)
    y = x @ torch.randn(8, 1, generator=generator) + 0.1 * torch.randn(240, 1, generator=generator)

    def final_loss(**options: object) -> float:
        torch.manual_seed(2)
        model = nn.Linear(8, 1)
        plain = torch.optim.SGD(model.parameters(), lr=0.05)
        names = model.named_parameters(prefix="regression")
        optimizer = bps.DistributedOptimizer(plain, names, **options)
        for _ in range(150):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(my_share(x)), my_share(y)).backward()
            optimizer.step()
        if options:
            optimizer.settle()
            assert not any(differs_between_ranks(parameter) for parameter in model.parameters())
        with torch.no_grad():
            return nn.functional.mse_loss(model(x), y).item()

    synchronous = final_loss()
    assert synchronous < 0.05
    for staleness in STALENESSES:
        asynchronous = final_loss(asynchronous=True, staleness=staleness)
        assert asynchronous < 1.1 * synchronous, f"staleness {staleness}: {asynchronous} instead of {synchronous}"


def case_every_step_of_every_rank_counts_once() -> None:
    for staleness in STALENESSES:
        weight, plain = counter()
        optimizer = bps.DistributedOptimizer(plain, [("w", weight)], asynchronous=True, staleness=staleness, op=bps.Sum)
        seen = 0.0
        for step in range(1, 31):
            count(weight, optimizer)
            now = weight[0].item()
            assert torch.equal(weight.detach(), torch.full((3,), now))
            # A late rank makes no update in its first.
            own = step - 1 if seen == 0 and staleness != 0 else step
            assert now >= max(own - 1, seen)
            if staleness != math.inf:
                assert now <= bps.size() * (step + staleness)
            seen = now
        optimizer.settle()
        # Late ranks make no update in their first steps.
        late = 0 if staleness == 0 else bps.size() - 1
        total = weight[0].item()
        assert 30 * bps.size() - late <= total <= 30 * bps.size(), f"{total} with staleness {staleness}"
        assert not differs_between_ranks(weight)


def case_a_step_within_a_step_is_none_of_its_own() -> None:
    class Derived(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            super().step()

    weight, _ = counter()  # now the step of the base class has hooks, too
    optimizer = bps.DistributedOptimizer(Derived([weight], lr=1.0), asynchronous=True, staleness=0)
    for _ in range(2):
        before = bps.metrics()["push_pulls"]
        count(weight, optimizer)
    assert bps.metrics()["push_pulls"] - before == int(bps.size() > 1)


def case_average_counts_a_part_of_each_step() -> None:
    weight, plain = counter()
    optimizer = bps.DistributedOptimizer(plain, [("w", weight)], asynchronous=True, staleness=0)
    for step in range(1, 5):
        count(weight, optimizer)
        assert torch.allclose(weight.detach(), torch.full((3,), float(step)))


def case_weights_are_those_of_rank_0() -> None:
    for staleness in STALENESSES:
        weight = nn.Parameter(torch.full((5,), float(bps.rank() + 7)))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        optimizer = bps.DistributedOptimizer(optimizer, [("w", weight)], asynchronous=True, staleness=staleness)
        weight.grad = torch.zeros(5)
        optimizer.step()
        assert torch.equal(weight.detach(), torch.full((5,), 7.0))


def case_gradients_of_other_weights_are_not_used() -> None:
    weight = nn.Parameter(torch.full((5,), float(bps.rank())))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    optimizer = bps.DistributedOptimizer(optimizer, [("w", weight)], asynchronous=True, staleness=0, op=bps.Sum)
    weight.grad = -torch.ones(5)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(5)), "of rank 0 alone"


def case_changes_made_by_others_than_the_optimizer_count() -> None:
    weight, plain = counter()
    optimizer = bps.DistributedOptimizer(plain, [("w", weight)], asynchronous=True, staleness=0)
    count(weight, optimizer)
    with torch.no_grad():
        weight.clamp_(max=0.25)
    count(weight, optimizer)
    assert torch.allclose(weight.detach(), torch.full((3,), 1.25))


def case_scripts_that_clip_run_unmodified() -> None:
    weight, plain = counter()
    optimizer = bps.DistributedOptimizer(plain, [("w", weight)], asynchronous=True, staleness=0, op=bps.Sum)
    weight.grad = torch.full((3,), -100.0)
    optimizer.synchronize()
    nn.utils.clip_grad_norm_([weight], 3**0.5)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert torch.allclose(weight.detach(), torch.full((3,), float(bps.size())))


def case_closures_compute_on_this_rank() -> None:
    weight = nn.Parameter(torch.full((2,), 2.0))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    optimizer = bps.DistributedOptimizer(optimizer, [("w", weight)], asynchronous=True, staleness=0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.sum() * (bps.rank() + 1)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0 * (bps.rank() + 1)
    assert torch.allclose(weight.detach(), torch.full((2,), 2.0 - 0.25 * (bps.size() + 1)))


def case_parameters_join_when_they_are_trained() -> None:
    frozen = nn.Parameter(torch.full((2,), float(bps.rank())), requires_grad=False)
    weight, plain = counter()
    plain.add_param_group({"params": [frozen]})
    optimizer = bps.DistributedOptimizer(
        plain, [("w", weight), ("frozen", frozen), ("late", late := nn.Parameter(torch.zeros(2)))],
        asynchronous=True, staleness=0,
    )  # fmt: skip
    count(weight, optimizer)
    assert frozen[0].item() == bps.rank(), "nobody touches it"
    frozen.requires_grad_()
    optimizer.add_param_group({"params": [late]})
    count(weight, optimizer)
    assert frozen[0].item() == 0, "rank 0's from now on"
    late.grad = -torch.ones(2)
    count(weight, optimizer)
    assert torch.equal(late.detach(), torch.ones(2))


def case_odd_tensors() -> None:
    torch.manual_seed(0)
    shapes = [(), (0,), (2, 3, 4, 5), (300_000,)]
    weights = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    weights.append(nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)))
    weights.append(nn.Parameter(torch.randn(7).to(torch.bfloat16)))
    weights.append(nn.Parameter(torch.randn(7).to(torch.float64)))
    before = [weight.detach().clone() for weight in weights]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    optimizer = bps.DistributedOptimizer(optimizer, asynchronous=True, staleness=0)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    for weight, old in zip(weights, before, strict=True):
        tolerance = 0.05 if weight.dtype == torch.bfloat16 else 1e-5
        assert torch.allclose(weight.detach(), old - 1, atol=tolerance), weight.shape


def case_it_stays_the_same_optimizer() -> None:
    model = mlp()
    plain = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), asynchronous=True, staleness=0)
    assert optimizer is plain and isinstance(optimizer, torch.optim.SGD)
    forward_backward(model, *map(my_share, data(0)))
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(other) is torch.optim.SGD
        assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


def case_wrong_use() -> None:
    model = mlp()

    def wrap(**options: object) -> Optimizer:
        return bps.DistributedOptimizer(sgd(model), model.named_parameters(), **options)

    with expect_error(InvalidArgumentError, "op is Max", "Average or Sum"):
        wrap(asynchronous=True, op=bps.Max)
    with expect_error(InvalidArgumentError, "no compression"):
        wrap(asynchronous=True, compression=bps.Compression.fp16)
    with expect_error(InvalidArgumentError, "nan_check", "does not exchange"):
        wrap(asynchronous=True, nan_check=True)
    with expect_error(InvalidArgumentError, "staleness is 3", "asynchronous=True"):
        wrap(staleness=3)
    for staleness in (-1, 255, 1.5, "2", True, math.nan, -math.inf):
        with expect_error(InvalidArgumentError, "staleness is", "0 to 254, or math.inf"):
            wrap(asynchronous=True, staleness=staleness)
    optimizer = wrap(asynchronous=True)
    with expect_error(InvalidArgumentError, "is distributed already"):
        bps.DistributedOptimizer(optimizer)


def case_ranks_that_differ_are_told_so() -> None:
    if bps.size() == 1:
        return
    last = bps.size() - 1

    def wrap_differently(here: dict[str, object], there: dict[str, object], *said: str) -> None:
        model = mlp()
        options = {"asynchronous": True, "staleness": 1} | (there if bps.rank() == last else here)
        with expect_error(InvalidArgumentError, "the ranks differ", "rank 0 has", f"rank {last} has", *said):
            bps.DistributedOptimizer(sgd(model), model.named_parameters(), **options).step()

    wrap_differently({}, {"asynchronous": False, "staleness": None}, "asynchronous training with staleness=1")
    wrap_differently({}, {"staleness": math.inf}, "staleness=1", "staleness=inf")
    wrap_differently({}, {"op": bps.Sum}, "op=Average", "op=Sum")
    weight, plain = counter()
    name = "w" if bps.rank() < last else "v"
    with expect_error(InvalidArgumentError, "the ranks differ", "'w' of", "'v' of"):
        bps.DistributedOptimizer(plain, [(name, weight)], asynchronous=True).step()
