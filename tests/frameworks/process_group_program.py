"""A rank of torch.distributed for tests: an unmodified script on the backend byteps.

    python process_group_program.py WHAT [STORE]

Without STORE the launcher says everything (env://). With a file as STORE the ranks meet there, and BYTEPS_LOCAL_RANK
and BYTEPS_LOCAL_SIZE, or RANK and WORLD_SIZE, say who this is.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from support.say import say
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import byteps.torch as bps


def start(store: str | None, timeout_s: float = 60) -> None:
    where = {}
    if store is not None:
        rank = os.environ.get("BYTEPS_LOCAL_RANK") or os.environ["RANK"]
        size = os.environ.get("BYTEPS_LOCAL_SIZE") or os.environ["WORLD_SIZE"]
        where = {"init_method": f"file://{store}", "rank": int(rank), "world_size": int(size)}
    dist.init_process_group("byteps", timeout=timedelta(seconds=timeout_s), **where)


def sum_of_ranks(group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.full((1000,), float(dist.get_rank()))
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


def train(steps: int) -> nn.Module:
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
    return model


def everything(store: str | None) -> None:
    """Start, train, end."""
    start(store)
    model = train(5)
    fingerprint = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    everyone = torch.zeros(dist.get_world_size(), fingerprint.numel())
    dist.all_gather_into_tensor(everyone, fingerprint)
    assert all(torch.equal(one, everyone[0]) for one in everyone)
    assert sum_of_ranks() == sum(range(dist.get_world_size()))
    assert (bps.rank(), bps.size()) == (dist.get_rank(), dist.get_world_size())
    dist.barrier()
    dist.destroy_process_group()
    assert not bps.is_initialized()
    say("all is well")


def ends_without_destroy(store: str | None) -> None:
    start(store)
    group = dist.new_group(list(range(dist.get_world_size() - 1)))
    if dist.get_rank() < dist.get_world_size() - 1:
        sum_of_ranks(group)
    sum_of_ranks()
    say("all is well")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else None)
