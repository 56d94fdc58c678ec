"""A rank that sums an array in place over all ranks: python -m benchmarks.peers.sum_rank LIBRARY.

Its steps understand `bytes` (of float32), `calls`, and `tensors`: that many sums of the size, all
started before the first is waited for. The first step of each kind checks the sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.harness.rank import serve
from benchmarks.peers.libraries import JOIN, Library


def checked(library: Library, size_bytes: int) -> Callable[[], object]:
    """A function that sums an array of zeros, which it cannot overflow."""
    array = np.full(size_bytes // 4, library.rank + 1, np.float32)
    sum_in_place = library.prepare(array, f"bench.{size_bytes}")
    sum_in_place()
    expected = library.size * (library.size + 1) / 2
    if not (array == expected).all():
        raise AssertionError(f"rank {library.rank}: expected {expected} everywhere, got {np.unique(array)[:5]}")
    array.fill(0)
    return sum_in_place


def many_at_once(library: Library, count: int, size_bytes: int) -> Callable[[], object]:
    """A function that starts `count` sums and then waits for them."""
    if library.prepare_start is None:
        raise ValueError(f"{sys.argv[1]} cannot sum {count} tensors at once")
    arrays = [np.zeros(size_bytes // 4, np.float32) for _ in range(count)]
    starts = [library.prepare_start(array, f"bench.{size_bytes}.{index}") for index, array in enumerate(arrays)]

    def sum_all() -> None:
        for wait in [start() for start in starts]:
            wait()

    sum_all()
    return sum_all


def main() -> None:
    """Entry point."""
    library = JOIN[sys.argv[1]]()
    prepared: dict[tuple[int, int], Callable[[], object]] = {}

    def step(request: Mapping[str, Any]) -> None:
        count, size_bytes = key = request.get("tensors", 1), request["bytes"]
        if key not in prepared:
            one = checked(library, size_bytes)
            prepared[key] = one if count == 1 else many_at_once(library, count, size_bytes)
        for _ in range(request["calls"]):
            prepared[key]()

    serve(library.rank, step, library.prepare(np.zeros(1, np.float32), "bench.barrier"))
    library.leave()


if __name__ == "__main__":
    main()
