"""A rank that calls collectives of torch.distributed: python -m benchmarks.peers.c10d_rank BACKEND.

Its steps understand `collective` (all_reduce, broadcast, all_gather), `bytes` of each rank's tensor
(float32), `tensors` (started at once, then all waited for) and `calls`. The first step of each kind
checks the result.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.harness.rank import serve


def prepare(collective: str, count: int, size_bytes: int) -> Callable[[], None]:
    """Returns a call of the collective that has been checked. Its tensors are zero from now on."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((size_bytes // 4,), rank + 1.0) for _ in range(count)]
    gathered = [[torch.empty_like(tensor) for _ in range(size)] for tensor in tensors]
    start = {
        "all_reduce": lambda index: dist.all_reduce(tensors[index], async_op=count > 1),
        "broadcast": lambda index: dist.broadcast(tensors[index], 0, async_op=count > 1),
        "all_gather": lambda index: dist.all_gather(gathered[index], tensors[index], async_op=count > 1),
    }[collective]

    def call() -> None:
        for work in [start(index) for index in range(count)]:
            if work is not None:
                work.wait()

    call()
    _check(collective, tensors, gathered)
    for tensor in tensors:
        tensor.zero_()
    return call


def _check(collective: str, tensors: list[torch.Tensor], gathered: list[list[torch.Tensor]]) -> None:
    size = dist.get_world_size()
    for tensor, parts in zip(tensors, gathered, strict=True):
        if collective == "all_gather":
            good = all(bool((part == rank + 1).all()) for rank, part in enumerate(parts))
        else:
            good = bool((tensor == (1 if collective == "broadcast" else size * (size + 1) / 2)).all())
        if not good:
            raise AssertionError(f"rank {dist.get_rank()}: wrong result of {collective}")


def main() -> None:
    """Entry point."""
    rank, size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
    dist.init_process_group(sys.argv[1], init_method=os.environ["BENCH_STORE"], rank=rank, world_size=size)
    prepared: dict[tuple[str, int, int], Callable[[], None]] = {}

    def step(request: Mapping[str, Any]) -> None:
        key = (request["collective"], request.get("tensors", 1), request["bytes"])
        if key not in prepared:
            prepared.clear()  # its memory
            prepared[key] = prepare(*key)
        for _ in range(request["calls"]):
            prepared[key]()

    serve(rank, step, dist.barrier)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
