"""Training on several ranks gives the parameters of one process on the same global batch.

Each rank trains a reference alone on the whole batch, and together with the others on its share.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext

import torch
from frameworks.torch_training import (
    STEPS,
    Checkpointed,
    Optimizer,
    Tied,
    assert_equal_on_all_ranks,
    assert_same_training,
    data,
    forward_backward,
    mlp,
    my_share,
    plain_step,
    sgd,
    small,
)
from support.expect import expect_error
from torch import nn

import byteps.torch as bps
from byteps.errors import NotInitializedError

MODES: dict[str, dict[str, object]] = {
    "wait in step": {"sync": "step"},
    "wait at the end of backward": {"sync": "backward"},
    "two groups": {"groups": 2},
    "two groups, wait in step": {"num_groups": 2, "sync": "step"},
    "one bucket": {"bucket_bytes": 1 << 20},
    "several buckets": {"bucket_bytes": 300, "find_unused_parameters": True},
    "everything checked": {"nan_check": True, "find_unused_parameters": True},
    "as with Horovod": {"gradient_predivide_factor": 2.0, "op": bps.Average, "groups": 0},
}


def case_every_mode() -> None:
    for options in MODES.values():
        assert_same_training(**options)


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
    if bps.size() > 1:  # a wrong result exceeds the tolerance
        with expect_error(AssertionError, "differs by"):
            assert_same_training(op=bps.Sum)


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


def case_schedulers_made_before_and_after() -> None:
    for before in (True, False):
        model = mlp()
        bps.broadcast_parameters(model.state_dict(), 0)
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) if before else None
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        with warnings.catch_warnings():
            # The scheduler warns when it misses the optimizer's steps.
            warnings.simplefilter("error")
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
    assert_same_training(Tied)


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


def case_checkpointing() -> None:
    assert_same_training(lambda: Checkpointed(use_reentrant=False))


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


def case_a_forked_child_sends_no_gradient_of_its_parent() -> None:
    """What was prepared before the fork belongs to the parent's node."""
    model = nn.Linear(8, 8, bias=False)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if bps.size() > 1 and os.fork() == 0:
        code = 1
        try:
            model.weight.grad = torch.ones(8, 8)
            with expect_error(NotInitializedError, "forked"):
                optimizer.synchronize()
            code = 0
        finally:
            os._exit(code)
    if bps.size() > 1:
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
