"""A rank that adds to tensors that services store: lost_store_rank.py STEPS PAUSE_S STALENESS.

A test ends the servers meanwhile. Every rank adds its own amount in each step. Each answer is
checked: all elements are equal, it has grown, and it has all that this rank has added. At the end
it must be the exact sum of all that all ranks have added. STALENESS is a number or "inf".
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np

import byteps as bps
from byteps.asynchronous import settle_weights
from byteps.ops import Buffer, accumulate_buffer, seed_buffer, synchronize

SIZES = (5, 1 << 15, 200_001)
SEED = 1.0


def buffer(array: np.ndarray) -> Buffer:
    return Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array)


class Stored:
    """A stored tensor of float64, in which the amounts of all ranks have digits of their own."""

    def __init__(self, size: int, staleness: float) -> None:
        self.name, self.staleness = f"stored{size}", staleness
        self.value = np.full(size, SEED)
        self.change = np.full(size, float(1000 ** bps.rank() * 2))
        self.added = 0

    def count(self, rank: int) -> int:
        return int(self.value[0] - SEED) // 2 // 1000**rank % 1000

    def seed(self) -> None:
        synchronize(seed_buffer(buffer(self.value), self.name, self.staleness, 0, lambda: None))

    def start(self) -> object:
        self.before = [self.count(rank) for rank in range(bps.size())]
        self.added += 1
        return accumulate_buffer(buffer(self.change), buffer(self.value), self.name, self.staleness, 0, lambda: None)

    def check(self) -> None:
        for first in range(0, self.value.size, 1 << 15):  # partitions may differ
            part = self.value[first : first + (1 << 10)]
            assert (part == part[0]).all(), f"{self.name}: a mixture of two values"
        assert self.count(bps.rank()) == self.added, f"{self.name}: {self.count(bps.rank())} of {self.added}"
        now = [self.count(rank) for rank in range(bps.size())]
        assert all(new >= old for new, old in zip(now, self.before, strict=True)), f"{self.before} to {now}"


def main() -> None:
    steps, pause_s, staleness = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    bps.init()
    tensors = [Stored(size, staleness if math.isinf(staleness) else int(staleness)) for size in SIZES]
    for tensor in tensors:
        tensor.seed()
    for step in range(steps):
        handles = [(tensor, tensor.start()) for tensor in tensors]
        for tensor, handle in handles:
            synchronize(handle)
            tensor.check()
        print("step", step, flush=True)
        time.sleep(pause_s * (1 + bps.rank()) / bps.size())

    def read() -> None:
        for tensor in tensors:
            tensor.seed()

    settle_weights(read)
    for tensor in tensors:
        total = SEED + sum(2.0 * 1000**rank * steps for rank in range(bps.size()))
        assert (tensor.value == total).all(), f"{tensor.name}: {np.unique(tensor.value)}, expected {total}"
    print("all is there, servers lost", bps.metrics()["servers_lost"], flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
