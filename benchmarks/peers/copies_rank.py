"""The copies and sums of one machine alone, without a protocol: python -m benchmarks.peers.copies_rank.

Processes that cannot read each other's tensors pass each part through shared memory: a rank copies
its contributions to the others' shares there, adds the others' contributions to its own share,
copies the sums there, and copies the others' sums into its tensor. The ranks do this in chunks, and
poll counters in shared memory instead of sleeping. So it shows what passing data this way costs
where each rank has a core. Ranks that share a core also spend time on polling.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.rank import CONTROL, serve

CHUNK_WORDS = (512 << 10) // 4
SLOTS = 2  # chunks of each kind that may be under way
COUNTER_STRIDE = 8  # words of 64 bits: a cache line for each counter

Array = np.ndarray[Any, Any]


class Exchange:
    """The shared memory of `size` ranks: counters, contributions, sums."""

    def __init__(self, path: Path, rank: int, size: int) -> None:
        self.rank, self.others = rank, [each for each in range(size) if each != rank]
        counters = 3 * size * COUNTER_STRIDE * 8
        slots = (size * size + size) * SLOTS * CHUNK_WORDS * 4
        with path.open("a+b") as file:
            file.truncate(counters + slots)
            memory = mmap.mmap(file.fileno(), counters + slots)
        # Chunks that a rank has sent to all others, has summed, and has received from all others.
        self.sent, self.summed, self.received = np.frombuffer(memory, np.int64, counters // 8).reshape(
            3, size, COUNTER_STRIDE
        )[:, :, 0]
        parts = np.frombuffer(memory, np.float32, offset=counters).reshape(size * size + size, SLOTS, CHUNK_WORDS)
        self.contributions = parts[: size * size].reshape(size, size, SLOTS, CHUNK_WORDS)  # by receiver, by sender
        self.sums = parts[size * size :]  # by the rank that summed

    def least(self, counters: Array) -> int:
        return min(int(counters[other]) for other in self.others)

    def all_reduce(self, shares: Array) -> None:
        """Sums in place. `shares`: (size, chunks, CHUNK_WORDS); shares[r] is what rank r sums."""
        rank = self.rank
        first = int(self.received[rank])
        end = first + shares.shape[1]
        while self.received[rank] < end:
            sent, summed, received = int(self.sent[rank]), int(self.summed[rank]), int(self.received[rank])
            if sent < end and sent - self.least(self.summed) < SLOTS:
                for other in self.others:
                    np.copyto(self.contributions[other, rank, sent % SLOTS], shares[other, sent - first])
                self.sent[rank] = sent + 1
            if summed < min(end, self.least(self.sent)) and summed - self.least(self.received) < SLOTS:
                own = shares[rank, summed - first]
                for other in self.others:
                    own += self.contributions[rank, other, summed % SLOTS]
                np.copyto(self.sums[rank, summed % SLOTS], own)
                self.summed[rank] = summed + 1
            if received < self.least(self.summed):
                for other in self.others:
                    np.copyto(shares[other, received - first], self.sums[other, received % SLOTS])
                self.received[rank] = received + 1
            if (sent, summed, received) == (self.sent[rank], self.summed[rank], self.received[rank]):
                os.sched_yield()


def main() -> None:
    """Entry point."""
    rank, size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
    path = Path("/dev/shm") / f"{Path(os.environ[CONTROL]).parent.name}-copies"  # of the lab's host alone
    exchange = Exchange(path, rank, size)
    tensors: dict[int, Array] = {}

    def step(request: Mapping[str, Any]) -> None:
        words = request["bytes"] // 4
        if words not in tensors:
            tensors[words] = np.ones(words, np.float32).reshape(size, -1, CHUNK_WORDS)
            exchange.all_reduce(tensors[words])
            if not (tensors[words] == size).all():
                raise RuntimeError("copies_rank: wrong sums")
            tensors[words].fill(0)
        for _ in range(request["calls"]):
            exchange.all_reduce(tensors[words])

    serve(rank, step)


if __name__ == "__main__":
    main()
