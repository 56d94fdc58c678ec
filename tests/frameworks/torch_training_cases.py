"""Training on several ranks gives the parameters of one process on the same global batch; rules of the optimizer.

Every rank trains a reference alone on the whole batch, and together with the others on its share of it.
"""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext

import torch
from support.expect import expect_error
from torch import nn
from torch.utils.checkpoint import checkpoint

import byteps.torch as bps
from byteps.errors import InvalidArgumentError, UnsupportedError

STEPS = 4
BATCH = 24  # divisible by 1, 2, 3 and 4 ranks, twice
Optimizer = torch.optim.Optimizer
Step = Callable[[nn.Module, Optimizer, torch.Tensor, torch.Tensor, bool], None]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def forward_backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    nn.functional.cross_entropy(model(x), y).backward()


def plain_step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
    optimizer.zero_grad()
    forward_backward(model, x, y)
    optimizer.step()


def data(step: int, shape: tuple[int, ...] = (6,)) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, *shape, generator=generator), torch.randint(0, 3, (BATCH,), generator=generator)


def my_share(batch: torch.Tensor) -> torch.Tensor:
    return batch.chunk(bps.size())[bps.rank()]


def trained(
    make_model: Callable[[], nn.Module],
    make_optimizer: Callable[[nn.Module], Optimizer],
    step: Step,
    shape: tuple[int, ...],
    distributed: bool,
    **options: object,
) -> nn.Module:
    torch.manual_seed(bps.rank() if distributed else 0)  # broadcast_parameters must make the models equal
    model = make_model()
    optimizer = make_optimizer(model)
    if distributed:
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), **options)
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        bps.broadcast_optimizer_state(optimizer, root_rank=0)
    for number in range(STEPS):
        x, y = data(number, shape)
        step(model, optimizer, my_share(x) if distributed else x, my_share(y) if distributed else y, distributed)
    return model


def assert_same_training(
    make_model: Callable[[], nn.Module] = mlp,
    make_optimizer: Callable[[nn.Module], Optimizer] = sgd,
    step: Step = plain_step,
    shape: tuple[int, ...] = (6,),
    tolerance: float = 1e-6,
    **options: object,
) -> None:
    alone = trained(make_model, make_optimizer, step, shape, distributed=False)
    together = trained(make_model, make_optimizer, step, shape, distributed=True, **options)
    for (name, expected), got in zip(alone.named_parameters(), together.parameters(), strict=True):
        difference = (expected - got).abs().max().item()
        assert difference <= tolerance, f"{name} differs by {difference}"
    untrained = trained(make_model, make_optimizer, lambda *_: None, shape, distributed=False)
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(alone.parameters(), untrained.parameters(), strict=True))


def case_sgd_momentum() -> None:
    assert_same_training()


def case_adam_and_others() -> None:
    makers: dict[str, Callable[[nn.Module], Optimizer]] = {
        "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, eps=1e-3),
        "adamw foreach": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-3, foreach=True),
        "adamw fused": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-3, fused=True),
        "sgd nesterov": lambda m: torch.optim.SGD(
            m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
    }
    for make in makers.values():
        assert_same_training(make_optimizer=make)


def case_sum_instead_of_average_is_noticed() -> None:
    if bps.size() > 1:  # the tolerance can tell right from wrong
        with expect_error(AssertionError, "differs by"):
            assert_same_training(op=bps.Sum)


def case_lbfgs_with_a_closure() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)

    def lbfgs(model: nn.Module) -> Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=3, line_search_fn="strong_wolfe")

    assert_same_training(make_optimizer=lbfgs, step=step, tolerance=1e-4)  # the line search magnifies rounding
    assert_same_training(step=step)


def case_gradient_accumulation() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(2), y.chunk(2), strict=True):
            forward_backward(model, part_x, part_y)
        optimizer.step()

    assert_same_training(step=step, backward_passes_per_step=2)

    def step_after_change(
        model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool
    ) -> None:
        if distributed:
            optimizer.set_backward_passes_per_step(2)
        step(model, optimizer, x, y, distributed)

    assert_same_training(step=step_after_change)


def case_fewer_passes_than_announced() -> None:
    assert_same_training(backward_passes_per_step=3)


def case_zero_grad_that_keeps_the_tensors() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad(set_to_none=False)
        forward_backward(model, x, y)
        optimizer.step()

    assert_same_training(step=step)


def case_clipping_after_synchronize() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        forward_backward(model, x, y)
        if distributed:
            optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        assert norm > 0.05
        with optimizer.skip_synchronize() if distributed and x[0, 0] > 0 else nullcontext():  # needed nowhere
            optimizer.step()

    assert_same_training(step=step)


def case_grad_scaler() -> None:
    scalers: dict[int, torch.amp.GradScaler] = {}

    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        scaler = scalers.setdefault(id(model), torch.amp.GradScaler("cpu", init_scale=1024.0))
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if distributed:
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

    assert_same_training(step=step)
    fused = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-3, fused=True)  # noqa: E731
    assert_same_training(make_optimizer=fused, step=step)


def case_schedulers_made_before_and_after() -> None:
    for before in (True, False):
        model = mlp()
        bps.broadcast_parameters(model.state_dict(), 0)
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) if before else None
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the scheduler warns when it misses the optimizer's steps
            for number in range(STEPS):
                x, y = data(number)
                plain_step(model, optimizer, my_share(x), my_share(y), True)
                scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**STEPS
        assert_equal_on_all_ranks(model)


def case_channels_last() -> None:
    def cnn() -> nn.Module:
        layers = (nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(4 * 4 * 4, 3))
        return nn.Sequential(*layers).to(memory_format=torch.channels_last)

    assert not cnn()[0].weight.is_contiguous()
    assert_same_training(cnn, shape=(3, 8, 8))


def case_shared_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)
            self.again = self.inner
            self.head = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.again(torch.tanh(self.inner(x))))

    assert_same_training(Tied)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.body, self.head, self.use_reentrant = mlp(), nn.Linear(3, 3), use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = checkpoint(self.body, x.requires_grad_(), use_reentrant=self.use_reentrant)
        return self.head(once) + checkpoint(self.body, x + 1, use_reentrant=self.use_reentrant)


def case_checkpointing() -> None:
    assert_same_training(lambda: Checkpointed(use_reentrant=False))


def case_reentrant_checkpointing_of_one_module_twice_is_refused() -> None:
    with expect_error(InvalidArgumentError, "use_reentrant"):
        trained(lambda: Checkpointed(use_reentrant=True), sgd, plain_step, (6,), distributed=True)


def case_compiled_model_and_step() -> None:
    compiled: dict[int, tuple[nn.Module, Callable[[], object]]] = {}

    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        if id(model) not in compiled:
            compiled[id(model)] = (
                torch.compile(model, backend="aot_eager"),
                torch.compile(optimizer.step, backend="eager"),
            )
        compiled_model, compiled_step = compiled[id(model)]
        optimizer.zero_grad()
        forward_backward(compiled_model, x, y)
        compiled_step()

    assert_same_training(small, step=step)


def case_compiled_autograd() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        with torch._dynamo.compiled_autograd._enable(compiler) if distributed else nullcontext():
            forward_backward(model, x, y)
        optimizer.step()

    compiler = torch.compile(backend="eager")
    assert_same_training(small, step=step)


def case_compression() -> None:
    assert_same_training(compression=bps.Compression.fp16, tolerance=1e-3)
    assert_same_training(compression=bps.Compression.bf16, tolerance=1e-2)


def case_bfloat16_parameters() -> None:
    model = mlp().bfloat16()
    bps.broadcast_parameters(model.state_dict(), 0)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    for number in range(STEPS):
        x, y = data(number)
        plain_step(model, optimizer, my_share(x).bfloat16(), my_share(y), True)
    assert_equal_on_all_ranks(model)


def case_parameters_added_later() -> None:
    class Grown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.late = nn.Linear(6, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.late(self.body(x))

    grown: set[int] = set()

    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        plain_step(model, optimizer, x, y, distributed)
        if id(model) not in grown:
            grown.add(id(model))
            optimizer.add_param_group({"params": model.late.parameters(), "lr": 0.05})

    assert_same_training(Grown, lambda model: torch.optim.SGD(model.body.parameters(), lr=0.1), step)


def case_parameters_frozen_at_first() -> None:
    def frozen() -> nn.Module:
        model = mlp()
        model[0].requires_grad_(False)
        return model

    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        plain_step(model, optimizer, x, y, distributed)
        model[0].requires_grad_(True)

    assert_same_training(frozen, step=step)


def case_a_parameter_without_gradient_on_some_ranks() -> None:
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    for layer in model:
        nn.init.ones_(layer.weight)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    chosen = 0 if bps.rank() == 0 else 1
    model[chosen](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    share = torch.tensor(1 / bps.size())
    assert torch.allclose(model[0].weight, 1 - share)
    if bps.size() > 1:
        assert torch.allclose(model[1].weight, share)


def case_unnamed_parameters_of_two_optimizers() -> None:
    models = [mlp(), mlp()]
    for model in models:
        bps.broadcast_parameters(model.state_dict(), 0)
    optimizers = [bps.DistributedOptimizer(sgd(model)) for model in models]
    for number in range(STEPS):
        x, y = data(number)
        for model in models:
            forward_backward(model, my_share(x), my_share(y))  # both in flight at once
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for model in models:
        assert_equal_on_all_ranks(model)


def case_ranks_with_parameters_in_different_orders() -> None:
    model = mlp()
    bps.broadcast_parameters(model.state_dict(), 0)
    named = list(model.named_parameters())
    if bps.rank() % 2:
        named.reverse()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=0.1), named)
    for number in range(STEPS):
        x, y = data(number)
        plain_step(model, optimizer, my_share(x), my_share(y), True)
    assert_equal_on_all_ranks(model)


def case_gradients_of_another_layout_than_the_parameter() -> None:
    parameter = nn.Parameter(torch.zeros(3, 4))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
    gradient = torch.arange(12.0).view(3, 4)
    parameter.grad = gradient.t().contiguous().t() if bps.rank() == 0 else gradient.clone()
    optimizer.step()
    assert torch.equal(parameter.detach(), -gradient)


def case_it_stays_the_same_optimizer() -> None:
    model = mlp()
    plain = torch.optim.Adam(model.parameters())
    forward_backward(model, *data(0))
    plain.step()
    state = copy.deepcopy(plain.state_dict())
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
    assert optimizer is plain and isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
    assert str(optimizer.state_dict()) == str(state)
    for clone in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(clone) is torch.optim.Adam
        assert str(clone.state_dict()) == str(state)
    optimizer.load_state_dict(state)
    with expect_error(InvalidArgumentError, "distributed one already"):
        bps.DistributedOptimizer(optimizer, model.named_parameters())


def case_model_and_optimizer_can_be_collected() -> None:
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    alive = [weakref.ref(model[0].weight), weakref.ref(optimizer)]
    plain_step(model, optimizer, *data(0), True)
    del model, optimizer
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def case_wrong_names() -> None:
    model, other = mlp(), mlp()
    named = list(model.named_parameters())
    for names, part in (
        ([*named, ("0.weight", other[0].weight)], "'0.weight' is given twice"),
        (named[1:], "1 of the optimizer's 6 parameters"),
        (model.parameters(), "expected (name, parameter)"),
    ):
        with expect_error(InvalidArgumentError, part):
            bps.DistributedOptimizer(sgd(model), names)
    for passes in (0, 1.5):
        with expect_error(InvalidArgumentError, f"backward_passes_per_step is {passes}"):
            bps.DistributedOptimizer(sgd(model), named, backward_passes_per_step=passes)


def case_too_many_backward_passes() -> None:
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    forward_backward(model, *data(0))
    with expect_error(InvalidArgumentError, "more than backward_passes_per_step=1", "Gradient."):
        forward_backward(model, *data(0))
    with expect_error(InvalidArgumentError, "in flight") if bps.size() > 1 else nullcontext():
        optimizer.synchronize()  # the pass too many has changed what was being sent
    optimizer.zero_grad()
    forward_backward(model, *data(0))
    optimizer.step()


def case_gradients_touched_while_in_flight() -> None:
    if bps.size() == 1:
        return  # nothing is ever in flight
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    touches: dict[str, Callable[[], object]] = {
        "clipping": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
        "zeroing": lambda: model.zero_grad(set_to_none=False),
        "dropping": model.zero_grad,
        "scaling": lambda: model[0].weight.grad.mul_(2),
    }
    for touch in touches.values():
        forward_backward(model, *data(0))
        touch()
        with expect_error(InvalidArgumentError, "changed while it was in flight", "optimizer.synchronize()"):
            optimizer.step()
    forward_backward(model, *data(0))
    with expect_error(InvalidArgumentError, "zero_grad()", "in flight"):
        optimizer.zero_grad()
    with optimizer.skip_synchronize(), expect_error(InvalidArgumentError, "step()", "in flight"):
        optimizer.step()
    optimizer.step()
    assert_equal_on_all_ranks_after_broadcast(model, optimizer)


def case_sparse_gradients_are_refused() -> None:
    if bps.size() == 1:
        return  # nothing is sent
    embedding = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    bps.DistributedOptimizer(optimizer)
    with expect_error(UnsupportedError, "sparse=False"):
        embedding(torch.tensor([1])).sum().backward()


def assert_equal_on_all_ranks(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert torch.equal(parameter, bps.broadcast(parameter, 0))


def assert_equal_on_all_ranks_after_broadcast(model: nn.Module, optimizer: Optimizer) -> None:
    bps.broadcast_parameters(model.state_dict(), 0)
    bps.broadcast_optimizer_state(optimizer, 0)
    x, y = data(0)
    plain_step(model, optimizer, my_share(x), my_share(y), True)
    assert_equal_on_all_ranks(model)
