"""Models in DistributedDataParallel on several ranks, and in one process on the whole batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from frameworks.torch_training import STEPS, Optimizer, assert_close, data, mlp, my_share
from torch import nn

import byteps.torch as bps

Loop = Callable[[nn.Module, Optimizer, torch.Tensor, torch.Tensor], None]


def plain_loop(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def momentum(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def trained(
    make_model: Callable[[], nn.Module],
    loop: Loop,
    shape: tuple[int, ...],
    make_optimizer: Callable[[nn.Module], Optimizer],
    **options: object,
) -> nn.Module:
    torch.manual_seed(1 + bps.rank())
    model = bps.DistributedDataParallel(make_model(), **options)
    optimizer = make_optimizer(model)
    for number in range(STEPS):
        x, y = data(number, shape)
        loop(model, optimizer, my_share(x), my_share(y))
    return model.module


def trained_alone(
    make_model: Callable[[], nn.Module],
    loop: Loop,
    shape: tuple[int, ...],
    make_optimizer: Callable[[nn.Module], Optimizer],
) -> nn.Module:
    torch.manual_seed(1)
    model = make_model()
    optimizer = make_optimizer(model)
    for number in range(STEPS):
        loop(model, optimizer, *data(number, shape))
    return model


def assert_same_training(
    make_model: Callable[[], nn.Module] = mlp,
    loop: Loop = plain_loop,
    shape: tuple[int, ...] = (6,),
    tolerance: float = 1e-6,
    make_optimizer: Callable[[nn.Module], Optimizer] = momentum,
    loop_alone: Loop | None = None,
    **options: object,
) -> None:
    expected = trained_alone(make_model, loop_alone or loop, shape, make_optimizer)
    assert_close(expected, trained(make_model, loop, shape, make_optimizer, **options), tolerance)
    torch.manual_seed(1)
    assert any(
        (a - b).abs().max() > 1e-3 for a, b in zip(make_model().parameters(), expected.parameters(), strict=True)
    )
