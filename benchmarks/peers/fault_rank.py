"""Sums one array again and again until it is killed: fault_rank.py LIBRARY BYTES.

Rank 0 prints "step N T" after each sum: T are seconds of the clock that all processes share. LIBRARY:
byteps, or torchrun: gloo by what torchrun tells.
"""

from __future__ import annotations

import sys
import time
from itertools import count

import numpy as np

from benchmarks.peers.libraries import Library, join_byteps


def join_by_torchrun() -> Library:
    """torch.distributed's gloo, with the ranks that torchrun has started."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return Library(
        dist.get_rank(),
        dist.get_world_size(),
        lambda array, _: lambda: dist.all_reduce(torch.from_numpy(array)),
        dist.destroy_process_group,
    )


def main() -> None:
    """Entry point."""
    library = join_byteps() if sys.argv[1] == "byteps" else join_by_torchrun()
    array = np.empty(int(sys.argv[2]) // 4, np.float32)
    reduce = library.prepare(array, "step")
    for step in count(1):
        array.fill(library.rank + step)
        reduce()
        expected = sum(range(library.size)) + library.size * step
        assert array[0] == array[-1] == expected, f"step {step}: {array[0]}, expected {expected}"
        if library.rank == 0:
            print(f"step {step} {time.monotonic():.6f}", flush=True)


if __name__ == "__main__":
    main()
