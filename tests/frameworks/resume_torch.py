"""resume_program.py's Trainer with PyTorch: DistributedOptimizer, DistributedDataParallel, CrossBarrier and more."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import byteps.torch as bps

__all__ = ["Trainer", "bps"]


class Net(nn.Module):
    """With a table whose gradient is sparse, and a part that nothing uses."""

    def __init__(self, norm: bool, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6, sparse=sparse)
        self.body, self.head, self.unused = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.table((x[:, 0].abs() * 3).long().clamp(max=6))
        return self.head(torch.tanh(self.norm(self.body(x))))


class Trainer:
    def __init__(self, distributed: bool) -> None:
        torch.manual_seed(0 if bps.rank() == 0 else 1)
        self.distributed = distributed
        self.nets: list[Any] = [Net(True, False), Net(False, False), Net(False, False), Net(False, True)]
        momenta = (0.0, 0.9, 0.9, 0.0)  # none where gradients are sparse
        self.optimizers = [
            torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)
            for net, momentum in zip(self.nets, momenta, strict=True)
        ]

    @staticmethod
    def before() -> None:
        for _ in range(2):
            net = Net(False, False)
            bps.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
            bps.DistributedDataParallel(Net(False, False))
            bps.CrossBarrier(net, torch.optim.SGD(net.parameters(), lr=0.1))
            bps.SyncBatchNorm(8)(torch.ones(2, 8))
            bps.push_pull(torch.ones(3))

    def broadcast(self) -> None:
        for net, optimizer in zip(self.nets, self.optimizers, strict=True):
            bps.broadcast_parameters(getattr(net, "module", net).state_dict(), 0)
            bps.broadcast_optimizer_state(optimizer, 0)

    def distribute(self) -> None:
        nets, optimizers = self.nets, self.optimizers
        nets[0] = bps.SyncBatchNorm.convert_sync_batchnorm(nets[0])
        for place, options in ((0, {"groups": 2}), (3, {"find_unused_parameters": True, "nan_check": True})):
            bps.DistributedOptimizer(optimizers[place], nets[place].named_parameters(), **options)
        bps.CrossBarrier(nets[2], optimizers[2])

    def step(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        for place, optimizer in enumerate(self.optimizers):
            if place == 1 and self.distributed and not hasattr(self.nets[1], "module"):
                # As late as this: with a first forward pass of the ranks that have it already.
                self.nets[1] = bps.DistributedDataParallel(self.nets[1])
            net = self.nets[place]
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(torch.from_numpy(x)), torch.from_numpy(y))
            loss.backward()
            optimizer.step()
        if self.distributed:
            assert bps.push_pull(torch.ones(3), average=False)[0] == bps.size()

    def weights(self) -> list[Any]:
        nets = [getattr(net, "module", net) for net in self.nets]
        return [p.detach().numpy() for net in nets for name, p in net.named_parameters() if "unused" not in name]
