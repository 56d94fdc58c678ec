"""A rank that sums until rank 0's standard input ends, and says when its push_pulls have moved.

Prints "waits" after the first step, and "moved N" when N placements have been moved to. Each sum is
checked.
"""

from __future__ import annotations

import select
import sys

import numpy as np

import byteps as bps

TENSORS = 16
ELEMENTS = 1 << 14


def inputs(rank: int, tensor: int) -> np.ndarray:
    """Random values, whose sums are exact in float32."""
    random = np.random.default_rng(1000 * rank + tensor)
    return random.integers(-1000, 1000, ELEMENTS).astype(np.float32)


def step(values: list[np.ndarray], sums: list[np.ndarray]) -> None:
    handles = [bps.push_pull_async(each, name=f"t{i}", op=bps.Sum) for i, each in enumerate(values)]
    for i, handle in enumerate(handles):
        assert (bps.synchronize(handle) == sums[i]).all(), f"wrong sum of t{i}"


def is_over() -> bool:
    """Whether rank 0's input has ended, for all ranks alike."""
    ended = bps.rank() == 0 and bool(select.select([sys.stdin], [], [], 0)[0])
    return bool(bps.push_pull(np.array([ended], np.float32), average=False, name="over")[0])


def main() -> None:
    """Entry point."""
    bps.init()
    values = [inputs(bps.rank(), i) for i in range(TENSORS)]
    sums = [sum(inputs(rank, i) for rank in range(bps.size())) for i in range(TENSORS)]
    step(values, sums)
    print("waits", flush=True)
    moves = 0
    while not is_over():
        step(values, sums)
        if bps.metrics()["placement_moves"] > moves:
            moves = int(bps.metrics()["placement_moves"])
            print("moved", moves, flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
