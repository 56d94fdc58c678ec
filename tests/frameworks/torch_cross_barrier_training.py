"""Training with CrossBarrier, compared bit by bit with the plain loop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from frameworks.torch_training import data, mlp, my_share
from torch import nn

import byteps.torch as bps

Optimizer = torch.optim.Optimizer
Tensor = torch.Tensor
Loop = Callable[[nn.Module, Optimizer, Tensor, Tensor], Tensor]
STEPS = 6
SMALL = 1e-4  # MiB: makes several buckets of these models


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
    """Returns the loss of every step, and the final state."""
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
