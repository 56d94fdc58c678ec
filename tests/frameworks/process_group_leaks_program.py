"""A rank of torch.distributed that repeats operations, and checks that its resources do not grow.

    python process_group_leaks_program.py WHAT [STORE]

STORE as in process_group_program.py.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from frameworks.process_group_program import say, start, sum_of_ranks
from support.processes import resident_bytes, thread_names
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import byteps.torch as bps


class Held(NamedTuple):
    objects: int
    threads: int
    files: int
    mib: float


# Limits: less than one object, or 6 KiB, for each step; threads for as many callbacks as ran at
# once.
SLACK = Held(objects=300, threads=4, files=0, mib=8.0)


def held() -> Held:
    gc.collect()
    files = len(list(Path("/proc/self/fd").iterdir()))
    return Held(len(gc.get_objects()), len(thread_names(os.getpid())), files, resident_bytes(os.getpid()) / (1 << 20))


def repeat(once: Callable[[int], object], times: int, slack: Held = SLACK) -> None:
    """Compares with a quarter of the steps, when all sizes are final."""
    for number in range(times // 4):
        once(number)
    before = held()
    for number in range(times // 4, times):
        once(number)
    after = held()
    say("a quarter of the way", before)
    say("at the end", after)
    assert all(b <= a + more for a, b, more in zip(before, after, slack, strict=True)), (before, after)


def train(wrap: Callable[[nn.Module], nn.Module], steps: int) -> None:
    model = wrap(nn.Sequential(*(nn.Linear(16, 16) for _ in range(6))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()

    repeat(step, steps)


def steps_of_ddp(store: str | None) -> None:
    start(store)
    train(lambda model: DistributedDataParallel(model, bucket_cap_mb=0.002), 2000)
    dist.destroy_process_group()


def steps_of_fsdp2(store: str | None) -> None:
    def shard(model: nn.Module) -> nn.Module:
        for layer in model:
            fully_shard(layer)
        return fully_shard(model)

    start(store)
    train(shard, 600)
    dist.destroy_process_group()


def collectives(store: str | None) -> None:
    """Starts collectives of all kinds and many sizes; waits for some of them."""
    start(store)
    size = dist.get_world_size()

    def step(number: int) -> None:
        length = 64 + number * 7919 % 2003
        x, parts = torch.ones(length), [torch.empty(length) for _ in range(size)]
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather(parts, x)
        dist.reduce_scatter(parts[0], list(torch.ones(size, length)))
        dist.all_reduce(torch.ones(4, 6).T, async_op=True).get_future().then(lambda done: done.value()[0])
        dist.all_gather_object([None] * size, "x" * length)
        dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.BOR)
        dist.barrier()

    repeat(step, 2000)
    dist.destroy_process_group()


def groups(store: str | None) -> None:
    """Makes and destroys groups of some ranks, and of all."""
    start(store)
    some = list(range(dist.get_world_size() - 1))

    def step(_: int) -> None:
        of_some, of_all = dist.new_group(some), dist.new_group()
        assert sum_of_ranks(of_all) == sum(range(dist.get_world_size()))
        if dist.get_rank() in some:
            assert sum_of_ranks(of_some) == sum(some)
            dist.destroy_process_group(of_some)
        dist.destroy_process_group(of_all)

    repeat(step, 100)
    dist.destroy_process_group()


def process_groups(store: str) -> None:
    hook = sys.excepthook

    def step(number: int) -> None:
        start(f"{store}.{number}")
        assert sum_of_ranks() == sum(range(dist.get_world_size()))
        dist.destroy_process_group()
        sys.excepthook = hook  # torch has replaced it
        assert not bps.is_initialized()

    repeat(step, 100)


def main() -> None:
    torch.set_num_threads(1)
    globals()[sys.argv[1]](sys.argv[2])
    say("all is well")


if __name__ == "__main__":
    main()
