"""CrossBarrier gives the bits of the plain loop, however the model uses its parameters; and what it refuses."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable

import torch
from frameworks.torch_training import Words, data, mlp, my_share
from support.expect import expect_error
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.checkpoint import checkpoint

import byteps.torch as bps
from byteps.errors import InvalidArgumentError, UnsupportedError

Optimizer = torch.optim.Optimizer
Tensor = torch.Tensor
Loop = Callable[[nn.Module, Optimizer, Tensor, Tensor], Tensor]
STEPS = 6
SMALL = 1e-4  # MiB: several buckets even for these models


def plain_loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def plain(model: nn.Module, optimizer: Optimizer, **_: object) -> Optimizer:
    return bps.DistributedOptimizer(optimizer, model.named_parameters())


def crossed(model: nn.Module, optimizer: Optimizer, **options: object) -> Optimizer:
    return bps.CrossBarrier(model, optimizer, **{"bucket_cap_mb": SMALL, **options})


def alone(model: nn.Module, optimizer: Optimizer, **_: object) -> Optimizer:
    return optimizer


def trained(
    wrap: Callable[..., Optimizer],
    make_model: Callable[[], nn.Module] = mlp,
    loop: Loop = plain_loop,
    make_optimizer: Callable[[nn.Module], Optimizer] = sgd,
    make_scheduler: Callable[[Optimizer], object] | None = None,
    **options: object,
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The loss of every step, and the state in the end."""
    torch.manual_seed(1)
    model = make_model()
    optimizer = wrap(model, make_optimizer(model), **options)
    scheduler = make_scheduler(optimizer) if make_scheduler else None
    losses = []
    for number in range(STEPS):
        x, y = data(number)
        losses.append(
            loop(model, optimizer, *((x, y) if wrap is alone else (my_share(x), my_share(y)))).detach().clone()
        )
        if scheduler is not None:
            scheduler.step()
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same_bits(*args: object, one_process: bool = True, **kwargs: object) -> None:
    losses, state = trained(plain, *args, **kwargs)
    got_losses, got = trained(crossed, *args, **kwargs)
    for step, (one, other) in enumerate(zip(losses, got_losses, strict=True)):
        assert torch.equal(one, other), f"loss of step {step}: {one} {other}"
    for name, value in state.items():
        assert torch.equal(value, got[name]), f"{name} differs by {(value - got[name]).abs().max()}"
    assert losses[-1] != losses[0]
    if one_process:
        for name, value in trained(alone, *args, **kwargs)[1].items():
            assert torch.allclose(value.float(), got[name].float(), atol=1e-5), name


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "sgd fused": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, fused=True),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-3),
    "adamw foreach": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-3, foreach=True),
    "adamw fused": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-3, fused=True),
    "adamw tensor lr": lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(1e-2), eps=1e-3, foreach=False),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-2, eps=1e-3),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2),
    "groups": lambda m: torch.optim.SGD(
        [
            {"params": [p for p in m.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in m.parameters() if p.dim() == 1], "lr": 0.01},
        ],
        lr=0.1,
        momentum=0.9,
    ),
}


def case_optimizers() -> None:
    for make in OPTIMIZERS.values():
        assert_same_bits(make_optimizer=make)


def case_buckets_of_every_size() -> None:
    for megabytes in (1e-6, 1e-3, 1):
        assert_same_bits(bucket_cap_mb=megabytes)


def case_schedulers() -> None:
    makers: dict[str, Callable[[Optimizer], object]] = {
        "step": lambda o: StepLR(o, 1, gamma=0.5),
        "one cycle": lambda o: OneCycleLR(o, 0.5, total_steps=STEPS + 1),  # momentum too
    }
    for make in makers.values():
        assert_same_bits(make_scheduler=make)
    tensor_rate = OPTIMIZERS["adamw tensor lr"]
    assert_same_bits(make_optimizer=tensor_rate, make_scheduler=makers["step"])  # which changes the tensor in place

    def scheduler_before(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = plain_loop(model, optimizer, x, y)
        optimizer.early.step()
        return loss

    def make(model: nn.Module) -> Optimizer:
        optimizer = sgd(model)
        optimizer.early = StepLR(optimizer, 1, gamma=0.5)  # wraps step before we do
        return optimizer

    assert_same_bits(loop=scheduler_before, make_optimizer=make)


def case_orders_of_the_loop() -> None:
    def zero_grad_before_backward(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def zero_grad_after_step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def zeros(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def by_the_model(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=bool(y[0]))
        return loss

    def never(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for loop in (zero_grad_before_backward, zero_grad_after_step, zeros, by_the_model, never):
        assert_same_bits(loop=loop)
        assert_same_bits(loop=loop, bucket_cap_mb=1e-6)


def case_gradient_accumulation() -> None:
    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = nn.functional.cross_entropy(model(part_x), part_y)
            loss.backward()
        optimizer.step()
        return loss

    def plain(model: nn.Module, optimizer: Optimizer, **options: object) -> Optimizer:
        return bps.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=2)

    losses, state = trained(plain, loop=loop)
    got_losses, got = trained(crossed, loop=loop, backward_passes_per_step=2)
    assert losses == got_losses and all(torch.equal(value, got[name]) for name, value in state.items())


class Shared(nn.Module):
    """One parameter in two modules, one module called twice, and parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(torch.tanh(self.first(x * self.scale))))))


class Functional(nn.Module):
    """Parameters used by others than the modules that own them: before their forward, or without."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(6, 6, bias=False)
        self.never_called = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x + self.head.bias.sum())  # before head's own forward
        x = torch.tanh(nn.functional.linear(x, self.never_called.weight, self.never_called.bias))
        x = x @ nn.functional.normalize(self.table.weight)
        return self.head(self.table(x))


class Attention(nn.Module):
    """MultiheadAttention uses the weight of a module within it and never calls that."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, 8), nn.Linear(8, 3)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x.unsqueeze(-1))).mean(1))


class WithBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


def case_models() -> None:
    assert_same_bits(Shared)
    assert_same_bits(Functional)
    assert_same_bits(Functional, bucket_cap_mb=1e-6)
    assert_same_bits(Attention)
    assert_same_bits(Attention, bucket_cap_mb=1e-6)
    assert_same_bits(WithBuffers, one_process=False)
    assert_same_bits(Checkpointed)


class Alternating(nn.Module):
    """A layer that only every other step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.sometimes, self.never, self.head = (nn.Linear(6, 6) for _ in range(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.body(x)
        return self.head(torch.tanh(self.sometimes(x) if self.calls % 2 else x))[:, :3]


def case_parameters_not_always_used() -> None:
    assert_same_bits(Alternating, one_process=False)
    for name, value in trained(alone, Alternating)[1].items():
        got = trained(crossed, Alternating, find_unused_parameters=True)[1]
        assert torch.allclose(value, got[name], atol=1e-5), name


def case_sparse_gradients_are_made_dense() -> None:
    expected = trained(alone, lambda: Words(sparse=False))[1]
    for megabytes in (1e-6, 1):
        got = trained(crossed, Words, bucket_cap_mb=megabytes)[1]
        for name, value in expected.items():
            assert torch.allclose(value, got[name], atol=1e-5), name


def case_frozen_parameters_and_groups_added_later() -> None:
    def frozen() -> nn.Module:
        model = mlp()
        model[0].requires_grad_(False)
        return model

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = plain_loop(model, optimizer, x, y)
        if not model[0].weight.requires_grad:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.05})
        return loss

    def some(model: nn.Module) -> Optimizer:
        return torch.optim.SGD([*model[2].parameters(), *model[4].parameters()], lr=0.1, momentum=0.9)

    assert_same_bits(frozen, loop, some)

    def thawing(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = plain_loop(model, optimizer, x, y)
        model[0].requires_grad_(True)
        return loss

    assert_same_bits(frozen, thawing)


def forward_without_gradient(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).sum()


def forward_in_inference_mode(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(x).sum().clone()


def forward_under_autocast(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return model(x).float().sum()


def weight_after_eval(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    model.eval()
    seen = model[2].weight.sum()
    model.train()
    return seen


LOOKS: tuple[Callable[[nn.Module, Optimizer, Tensor], Tensor], ...] = (
    forward_without_gradient,
    forward_in_inference_mode,
    forward_under_autocast,
    weight_after_eval,
    lambda model, optimizer, x: sum(parameter.sum() for parameter in model.parameters()),
    lambda model, optimizer, x: sum(value.sum() for value in model.state_dict().values()),
    lambda model, optimizer, x: sum(
        state["momentum_buffer"].sum() for _, state in sorted(optimizer.state_dict()["state"].items())
    ),
    lambda model, optimizer, x: copy.deepcopy(model)(x).sum(),
)


def case_looks_in_between() -> None:
    for look in LOOKS:

        def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, look: object = look) -> Tensor:
            plain_loop(model, optimizer, x, y)
            return look(model, optimizer, x)

        assert_same_bits(loop=loop)


def case_mixed_precision() -> None:
    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    assert_same_bits(loop=loop, one_process=False)


def case_clipping_and_scaler_after_synchronize() -> None:

    def clip(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        return loss

    def scale(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        if not hasattr(optimizer, "scaler"):
            optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler = optimizer.scaler
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        scaler.step(optimizer)
        scaler.update()
        return loss

    for loop in (clip, scale):
        assert_same_bits(loop=loop)
        assert_same_bits(loop=loop, make_optimizer=OPTIMIZERS["adamw fused"])

    def scaled_by_rank(x: Tensor) -> bool:
        return bool(bps.push_pull(x[0, 0], name="decision") > 0)

    assert_same_bits(loop=lambda *a: (clip if scaled_by_rank(a[2]) else plain_loop)(*a), one_process=False)


def case_compression() -> None:
    def plain(model: nn.Module, optimizer: Optimizer, **_: object) -> Optimizer:
        return bps.DistributedOptimizer(optimizer, model.named_parameters(), compression=bps.Compression.bf16)

    losses, state = trained(plain)
    got_losses, got = trained(crossed, compression=bps.Compression.bf16)
    assert losses == got_losses and all(torch.equal(value, got[name]) for name, value in state.items())


def case_compiled_submodules_and_model() -> None:
    def compiled_layers() -> nn.Module:
        model = mlp()
        for layer in model:
            layer.compile(backend="aot_eager")
        return model

    assert_same_bits(compiled_layers)

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        if not hasattr(optimizer, "compiled_model"):
            optimizer.compiled_model = torch.compile(model, backend="aot_eager")
        return plain_loop(optimizer.compiled_model, optimizer, x, y)

    assert_same_bits(loop=loop)
    torch._dynamo.reset()


def case_no_parameter_is_waited_for_too_early() -> None:
    """The first layer's forward begins although the last layer's gradient has not come: another rank holds it back."""
    if bps.size() == 1:
        return
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = crossed(model, torch.optim.SGD(model.parameters(), lr=1.0), bucket_cap_mb=7e-5)
    plain_loop(model, optimizer, torch.ones(1, 4), torch.zeros(1, dtype=torch.long))
    optimizer.zero_grad()
    optimizer.flush()
    if bps.rank() == 0:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        before = model[1].weight.clone()
        model[0](torch.ones(1, 4))  # needs nothing of the last layer
        assert torch.equal(model[1].weight, before)
    else:
        # Hold back the last layer: its gradient comes only after rank 0 has said that it has gone on.
        lazy = optimizer._lazy
        first, last = (lazy.parcel_of(layer.weight) for layer in model)
        assert first is not last
        send = lazy._send
        lazy._send = lambda parcel: None if parcel is last else send(parcel)
        model(torch.ones(1, 4)).sum().backward()
        del lazy._send
        assert first.handle is not None and last.handle is None
    bps.barrier()
    if bps.rank() != 0:
        optimizer.step()
    optimizer.flush()
    for parameter in model.parameters():
        assert torch.equal(parameter, bps.broadcast(parameter, 0))


def case_what_forward_needs_first_goes_first_after_the_first_quarter_of_backward() -> None:
    model = nn.Sequential(*[nn.Linear(20, 20, bias=False) for _ in range(8)])
    lazy = crossed(model, sgd(model))._lazy
    parcels = [lazy.parcel_of(layer.weight) for layer in model]
    assert [parcel.priority for parcel in parcels] == [-1, -2, -3, -4, -5, -6, 0, 0]
    waits_for_all = plain(model, sgd(model))
    assert {parcel.priority for parcel in waits_for_all._exchange._parcels} == {0}


def case_last_step_is_complete_after_num_steps() -> None:
    torch.manual_seed(1)
    model = mlp()
    optimizer = crossed(model, sgd(model), num_steps=2)
    pending = []
    for number in range(2):
        plain_loop(model, optimizer, *map(my_share, data(number)))
        pending.append(optimizer._lazy.pending)
    assert pending == [bps.size() > 1, False]


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


def case_a_forward_pass_that_fails_is_forgotten() -> None:
    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        with expect_error(RuntimeError, "mat1 and mat2"):
            model(x[:, :5])
        hook = model[2].register_forward_pre_hook(lambda *_: torch.ones(1, 1))
        with expect_error(RuntimeError, "mat1 and mat2"):
            model(x)
        hook.remove()
        return plain_loop(model, optimizer, x, y)

    assert_same_bits(loop=loop)


def case_two_models_at_once() -> None:
    def two() -> tuple[list[nn.Module], list[Optimizer]]:
        torch.manual_seed(1)
        models = [mlp(), mlp()]
        return models, [sgd(model) for model in models]

    results = []
    for wrap in (plain, crossed):
        models, optimizers = two()
        optimizers = [wrap(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)]
        for number in range(STEPS):
            x, y = map(my_share, data(number))
            for optimizer in optimizers:
                optimizer.zero_grad()
            sum(nn.functional.cross_entropy(model(x), y) for model in models).backward()
            for optimizer in optimizers:
                optimizer.step()
        results.append([p.detach().clone() for model in models for p in model.parameters()])
    assert all(map(torch.equal, *results))


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
        (InvalidArgumentError, plain(model, sgd(model)), {}, "distributed one already, or has a CrossBarrier"),
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
            crossed(other, sgd(other))


def case_a_step_that_raises_is_not_the_last() -> None:
    class Moody(torch.optim.SGD):
        fails = False

        def step(self, closure: object = None) -> None:
            if self.fails:
                self.fails = False
                raise ValueError("out of luck")
            super().step()

    def make(model: nn.Module) -> Optimizer:
        sgd(model)  # from now on the step of the base class has hooks, too
        return Moody(model.parameters(), lr=0.1, momentum=0.9)

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.flush()  # what is left of the step before does not raise
        optimizer.fails = True
        with expect_error(ValueError, "out of luck"):
            optimizer.step()
        assert [len(group["params"]) for group in optimizer.param_groups] == [6]
        return plain_loop(model, optimizer, x, y)

    torch.manual_seed(1)
    model = mlp()
    optimizer = crossed(model, make(model), per_parameter=True)
    x, y = data(0)
    losses = [plain_loop(model, optimizer, x, y).item()]
    losses += [loop(model, optimizer, x, y).item() for _ in range(STEPS)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.9 * losses[0], losses


def case_what_it_cannot_be_combined_with() -> None:
    if bps.size() == 1:
        return  # nothing is ever in flight
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
            optimizer._lazy._wait([])  # nothing of it may meet the next case's tensors


class UsedOutside(nn.Module):
    """The second forward pass and those after it use a parameter of a module that they do not call."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.body(x) if self.calls == 1 else nn.functional.linear(x, self.body.weight)
        return self.head(x)


def case_a_parameter_used_before_it_is_up_to_date_is_noticed() -> None:
    if bps.size() == 1:
        return  # all are up to date
    torch.manual_seed(1)
    model = UsedOutside()
    optimizer = crossed(model, sgd(model), bucket_cap_mb=1e-6)
    plain_loop(model, optimizer, *map(my_share, data(0)))
    with expect_error(InvalidArgumentError, "'body.weight' was used without", "optimizer.flush()"):
        plain_loop(model, optimizer, *map(my_share, data(1)))
    optimizer.flush()


def case_a_flush_makes_any_use_right() -> None:
    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        if hasattr(optimizer, "flush"):
            optimizer.flush()
        return plain_loop(model, optimizer, x, y)

    assert_same_bits(UsedOutside, loop, one_process=False)
