"""A rank that trains in one of the modes until rank 1 dies in the middle of a step.

    python torch_lost_rank.py MODE FILE

FILE: for torch.distributed. Rank 1 ends with 9; a rank that gets an exception prints it and ends
with 3.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

import byteps.torch as bps

Step = Callable[[], object]


class Bomb(nn.Module):
    """Ends the process in backward if armed, while gradients of later layers are in flight."""

    armed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if Bomb.armed:
            x.register_hook(lambda _: os._exit(9))
        return x


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), Bomb(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()

    return step


def ddp(store: str) -> Step:
    model = bps.DistributedDataParallel(mlp(), bucket_cap_mb=1e-3)
    return loop(model, sgd(model))


def hook(store: str) -> Step:
    dist.init_process_group("gloo", store=dist.FileStore(store, bps.size()), rank=bps.rank(), world_size=bps.size())
    model = nn.parallel.DistributedDataParallel(mlp(), bucket_cap_mb=1e-3)
    model.register_comm_hook(None, bps.ddp_hook)
    return loop(model, sgd(model))


def cross_barrier(store: str) -> Step:
    model = mlp()
    return loop(model, bps.CrossBarrier(model, sgd(model), bucket_cap_mb=1e-3))


def library(store: str) -> Step:
    compiled = torch.compile(lambda x: bps.push_pull(x, name="x") + 1, backend="aot_eager", fullgraph=True)
    return lambda: compiled(torch.ones(1000))


def sync_batch_norm(store: str) -> Step:
    model = nn.Sequential(nn.Linear(6, 4), Bomb(), bps.SyncBatchNorm(4), nn.Linear(4, 4), bps.SyncBatchNorm(4))
    return loop(model, sgd(model))


def metric(store: str) -> Step:
    metrics = bps.MetricAverage("loss")
    metrics.update(loss=1.0)
    return metrics.compute


def main() -> int:
    mode, store = sys.argv[1:]
    bps.init()
    step = globals()[mode](store)
    for number in range(1000):
        if bps.rank() == 1 and number == 3:
            Bomb.armed = True
            if mode in ("library", "metric"):  # these have no backward to die in
                os._exit(9)
        try:
            step()
        except Exception as error:
            print(type(error).__name__, error, flush=True)
            os._exit(3)  # skips the shutdown of torch.distributed, which waits for the dead rank
    return 0


if __name__ == "__main__":
    sys.exit(main())
