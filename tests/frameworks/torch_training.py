"""Models that train in one process on a whole batch, and on several ranks on shares of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import byteps.torch as bps

STEPS = 4
BATCH = 24  # divisible by 1, 2, 3 and 4 ranks, twice
Optimizer = torch.optim.Optimizer
Step = Callable[[nn.Module, Optimizer, torch.Tensor, torch.Tensor, bool], None]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.again = self.inner
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(torch.tanh(self.inner(x))))


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.body, self.head, self.use_reentrant = mlp(), nn.Linear(3, 3), use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = checkpoint(self.body, x.clone().requires_grad_(), use_reentrant=self.use_reentrant)
        return self.head(once) + checkpoint(self.body, x + 1, use_reentrant=self.use_reentrant)


class Nested(nn.Module):
    """Uses reentrant checkpoints: twice of one body, and once of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.tail = mlp(), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        twice = checkpoint(self.body, x, use_reentrant=True) + checkpoint(self.body, x + 1, use_reentrant=True)
        return self.tail(twice)


class Words(nn.Module):
    """Has a table with sparse gradients, a table that only even ranks use, and dense layers."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.table, self.other = nn.Embedding(40, 3, sparse=sparse), nn.EmbeddingBag(40, 3, sparse=sparse, mode="sum")
        self.head = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, own: bool = True) -> torch.Tensor:
        words = (x[:, 0].abs() * 13).long().clamp(max=39)
        x = torch.tanh(self.table(words))
        return self.head(x + self.other(words[:, None]) if own else x)


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
    # broadcast_parameters must make the models equal.
    torch.manual_seed(bps.rank() if distributed else 0)
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


def assert_close(expected: nn.Module, got: nn.Module, tolerance: float = 1e-6) -> None:
    for (name, one), other in zip(expected.named_parameters(), got.parameters(), strict=True):
        difference = (one - other).abs().max().item()
        assert difference <= tolerance, f"{name} differs by {difference}"


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
    assert_close(alone, together, tolerance)
    untrained = trained(make_model, make_optimizer, lambda *_: None, shape, distributed=False)
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(alone.parameters(), untrained.parameters(), strict=True))


def assert_equal_on_all_ranks(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert torch.equal(parameter, bps.broadcast(parameter, 0))


def assert_equal_on_all_ranks_after_broadcast(model: nn.Module, optimizer: Optimizer) -> None:
    bps.broadcast_parameters(model.state_dict(), 0)
    bps.broadcast_optimizer_state(optimizer, 0)
    x, y = data(0)
    plain_step(model, optimizer, my_share(x), my_share(y), True)
    assert_equal_on_all_ranks(model)
