"""A rank that sums an array in place over all ranks: python -m benchmarks.peers.sum_rank LIBRARY.

Its steps understand `bytes` (of float32) and `calls`. The first step with a size checks the sum.
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


def main() -> None:
    """Entry point."""
    library = JOIN[sys.argv[1]]()
    prepared: dict[int, Callable[[], object]] = {}

    def step(request: Mapping[str, Any]) -> None:
        size_bytes = request["bytes"]
        if size_bytes not in prepared:
            prepared[size_bytes] = checked(library, size_bytes)
        for _ in range(request["calls"]):
            prepared[size_bytes]()

    serve(library.rank, step)
    library.leave()


if __name__ == "__main__":
    main()
