"""A rank that sums until roots have moved on all ranks: follow_links.py MOVES...

For each MOVES: prints "waits", sums until every rank has counted so many moves of the placement,
and prints "moved". Each sum is checked.
"""

from __future__ import annotations

import sys

import numpy as np

import byteps as bps

TENSORS = 16
ELEMENTS = 1 << 14
MOST_STEPS = 10_000


def step(number: int, values: list[np.ndarray]) -> None:
    """Sums random values, which have exact sums in float32."""
    handles = [bps.push_pull_async(each, name=f"t{i}", op=bps.Sum) for i, each in enumerate(values)]
    for i, handle in enumerate(handles):
        expected = sum(inputs(rank, i) for rank in range(bps.size()))
        got = bps.synchronize(handle)
        assert (got == expected).all(), f"step {number}: wrong sum of t{i}"


def inputs(rank: int, tensor: int) -> np.ndarray:
    random = np.random.default_rng(1000 * rank + tensor)
    return random.integers(-1000, 1000, ELEMENTS).astype(np.float32)


def all_have_moved(moves: int) -> bool:
    mine = np.array([bps.metrics()["placement_moves"] >= moves], np.float32)
    return bool(bps.push_pull(mine, average=False, name="moved")[0] == bps.size())


def main() -> None:
    """Entry point."""
    bps.init()
    values = [inputs(bps.rank(), i) for i in range(TENSORS)]
    number = 0
    for moves in map(int, sys.argv[1:]):
        print("waits", flush=True)
        while not all_have_moved(moves):
            number += 1
            assert number < MOST_STEPS, "roots do not move"
            step(number, values)
        step(number, values)
        print("moved", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
