"""Waiting at the end of backward: loops written for one process, with any number of passes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from frameworks.torch_training import (
    Nested,
    Optimizer,
    assert_equal_on_all_ranks,
    assert_same_training,
    data,
    forward_backward,
    mlp,
    my_share,
    plain_step,
    sgd,
    small,
    trained,
)
from support.expect import expect_error
from torch import nn
from torch.utils.checkpoint import checkpoint

import byteps.torch as bps
from byteps.errors import InvalidArgumentError

LAYOUTS: tuple[dict[str, object], ...] = ({}, {"groups": 2}, {"bucket_bytes": 1 << 20})


def case_clipping_in_an_unmodified_loop() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        forward_backward(model, x, y)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        assert norm > 0.05
        optimizer.step()

    for layout in LAYOUTS:
        assert_same_training(step=step, **layout)


def scaled_step() -> Callable[..., None]:
    scalers: dict[int, torch.amp.GradScaler] = {}

    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        scaler = scalers.setdefault(id(model), torch.amp.GradScaler("cpu", init_scale=1024.0))
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

    return step


def case_grad_scaler_in_an_unmodified_loop() -> None:
    fused = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-3, fused=True)  # noqa: E731
    for layout in LAYOUTS:
        assert_same_training(step=scaled_step(), **layout)
    assert_same_training(make_optimizer=fused, step=scaled_step())


def case_grad_scaler_skips_the_same_steps_on_all_ranks() -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number in range(4):
        x, y = data(number)
        overflows = number == 1 and bps.rank() == bps.size() - 1
        before = model[0].weight.detach().clone()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(my_share(x)), my_share(y)) * (torch.inf if overflows else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model[0].weight) == (number == 1)
    assert_equal_on_all_ranks(model)


def case_code_with_explicit_waits_still_runs() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        forward_backward(model, x, y)
        if distributed:
            optimizer.synchronize()
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.05
        if distributed:
            optimizer.synchronize()  # must not average what is clipped
        with optimizer.skip_synchronize() if distributed and y[0] else nullcontext():
            optimizer.step()

    for sync in ("auto", "step"):
        assert_same_training(step=step, sync=sync)


def case_two_losses_one_after_the_other() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = torch.tanh(self.body(x))
            return self.first(hidden), self.second(hidden)

    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        first, second = model(x)
        nn.functional.cross_entropy(first, y).backward(retain_graph=True)
        nn.functional.cross_entropy(second, 2 - y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    with captured_warnings() as warnings:
        for layout in LAYOUTS:
            assert_same_training(TwoHeads, step=step, **layout)
    assert len(warnings) == len(LAYOUTS) and "backward_passes_per_step" in warnings[0], warnings
    with captured_warnings() as warnings:
        assert_same_training(TwoHeads, step=step, backward_passes_per_step=2)
    assert not warnings


def case_the_same_graph_twice() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()

    for layout in LAYOUTS:
        assert_same_training(step=step, **layout)
    if bps.size() > 1:
        with expect_error(InvalidArgumentError, "Sum", "backward_passes_per_step"):
            assert_same_training(step=step, op=bps.Sum)


def case_accumulation_whose_last_part_is_clipped() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(2), y.chunk(2), strict=True):
            (nn.functional.cross_entropy(model(part_x), part_y) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()

    for layout in LAYOUTS:
        assert_same_training(step=step, backward_passes_per_step=2, **layout)
        assert_same_training(step=step, **layout)


def case_an_adversary_with_an_optimizer_of_its_own() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
            self.judge = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def train(distributed: bool) -> Pair:
        torch.manual_seed(7)
        pair = Pair()
        makers, judges = (torch.optim.Adam(part.parameters(), lr=1e-2, eps=1e-3) for part in (pair.maker, pair.judge))
        if distributed:
            makers = bps.DistributedOptimizer(makers, pair.maker.named_parameters())
            judges = bps.DistributedOptimizer(judges, pair.judge.named_parameters(), groups=1)
        for number in range(4):
            x, _ = data(number)
            real = my_share(x) if distributed else x
            made = pair.maker(real.flip(1))
            judges.zero_grad()
            (pair.judge(made.detach()).mean() - pair.judge(real).mean()).backward()
            judges.step()
            makers.zero_grad()
            (-pair.judge(made).mean()).backward()  # reaches the judge's parameters, too
            makers.step()
        return pair

    for expected, got in zip(train(False).parameters(), train(True).parameters(), strict=True):
        assert torch.allclose(expected, got, rtol=0, atol=1e-6)


def case_backward_in_another_thread() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        thread = threading.Thread(target=forward_backward, args=(model, x, y))
        thread.start()
        thread.join()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()

    assert_same_training(step=step)


def case_reentrant_checkpointing_of_one_module_twice() -> None:
    for layout in LAYOUTS:
        assert_same_training(Nested, **layout)
    if bps.size() > 1:
        with expect_error(InvalidArgumentError, "use_reentrant"):
            trained(Nested, sgd, plain_step, (6,), distributed=True, sync="step")


def case_reentrant_checkpointing_of_everything() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.body, x.clone().requires_grad_(), use_reentrant=True)

    for layout in LAYOUTS:
        assert_same_training(Whole, **layout)


def case_autocast() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    for layout in LAYOUTS:
        assert_same_training(step=step, tolerance=1e-2, **layout)


def case_compiled_autograd_waits_in_step() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        with torch._dynamo.compiled_autograd._enable(compiler) if distributed else nullcontext():
            forward_backward(model, x, y)
        optimizer.step()

    compiler = torch.compile(backend="eager")
    with captured_warnings() as warnings:
        assert_same_training(small, step=step)
        assert_same_training(small, step=step, groups=2)
    assert not warnings
    with captured_warnings() as warnings:
        assert_same_training(small, step=step, sync="backward")
    assert "compiled autograd" in warnings[0] and len(warnings) == 1


class WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = small(), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def case_gradients_touched_under_compiled_autograd() -> None:
    """A pass ends with the last parameter's gradient; if a parameter has none, it ends in step."""

    def clipping(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad()
        with torch._dynamo.compiled_autograd._enable(compiler) if distributed else nullcontext():
            forward_backward(model, x, y)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()

    compiler = torch.compile(backend="eager")
    assert_same_training(small, step=clipping)
    if bps.size() > 1:  # one rank sends nothing
        with expect_error(InvalidArgumentError, "changed while it was in flight", "optimizer.synchronize()"):
            trained(WithUnused, sgd, clipping, (6,), distributed=True)


def case_unused_parameters_are_the_same_on_all_ranks_at_the_end_of_backward() -> None:
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model[0 if bps.rank() == 0 else 1](torch.ones(1, 2)).sum().backward()
        expected = torch.tensor([[1 / bps.size()] * 2])
        assert torch.allclose(model[0].weight.grad, expected)
        if bps.size() > 1:
            assert torch.allclose(model[1].weight.grad, 1 - expected)


def case_a_failed_backward_is_told_from_an_unfinished_one() -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError("as if out of memory")

    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    with expect_error(ArithmeticError, "out of memory"):
        model[1](Failing.apply(model[0](torch.ones(1, 2)))).sum().backward()
    if bps.size() > 1:
        with expect_error(InvalidArgumentError, "in flight", "optimizer.synchronize()"):
            optimizer.zero_grad()
    optimizer.synchronize()
    optimizer.zero_grad()
    model[1](model[0](torch.ones(1, 2))).sum().backward()
    optimizer.step()


@contextmanager
def captured_warnings() -> Iterator[list[str]]:
    """Collects what byteps logs within it."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("byteps")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
