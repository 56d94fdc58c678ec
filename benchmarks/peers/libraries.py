"""The libraries of sum_rank.py: to join, and to sum an array in place. Runs inside the ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Library(NamedTuple):
    """A rank of a job that has started."""

    rank: int
    size: int
    # Returns a function that sums the array of this name in place.
    prepare: Callable[[Array, str], Callable[[], object]]
    leave: Callable[[], object]
    # Returns one that starts the sum and returns a function that waits for it; None: it cannot.
    prepare_start: Callable[[Array, str], Callable[[], Callable[[], object]]] | None = None


def join_byteps() -> Library:
    """Uses byteps.ops, since importing a framework takes ten times as long."""
    import byteps
    from byteps.ops import Buffer, Sum, push_pull_and_wait, push_pull_buffer, synchronize

    byteps.init()

    def prepare(array: Array, name: str) -> Callable[[], object]:
        buffer = Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array)
        return lambda: push_pull_and_wait(buffer, name, Sum)

    def prepare_start(array: Array, name: str) -> Callable[[], Callable[[], object]]:
        buffer = Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array)

        def start() -> Callable[[], object]:
            handle = push_pull_buffer(buffer, buffer, name, Sum, 0, finish=lambda: None)
            return lambda: synchronize(handle)

        return start

    return Library(byteps.rank(), byteps.size(), prepare, byteps.shutdown, prepare_start)


def join_gloo() -> Library:
    """torch.distributed; it finds its interface in GLOO_SOCKET_IFNAME."""
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["BENCH_STORE"], rank=rank, world_size=size)

    def prepare(array: Array, _: str) -> Callable[[], object]:
        tensor = torch.from_numpy(array)
        return lambda: dist.all_reduce(tensor)

    return Library(rank, size, prepare, dist.destroy_process_group)


def join_openmpi() -> Library:
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(array: Array, _: str) -> Callable[[], object]:
        return lambda: world.Allreduce(MPI.IN_PLACE, array)

    return Library(world.rank, world.size, prepare, lambda: None)


JOIN = {"byteps": join_byteps, "gloo": join_gloo, "openmpi": join_openmpi}
