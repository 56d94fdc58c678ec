"""Sums one array in an elastic job, and commits after each step: elastic_rank.py BYTES [say].

With "say" it prints "step N T" after each step, as fault_rank.py does.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from benchmarks.peers.libraries import join_byteps
from byteps import elastic


def main() -> None:
    """Entry point. Runs until it is killed."""
    library = join_byteps()
    array = np.empty(int(sys.argv[1]) // 4, np.float32)
    reduce = library.prepare(array, "step")
    state = elastic.ObjectState(step=0)

    @elastic.run
    def train(state: elastic.ObjectState) -> None:
        print(f"begins at step {state.step}", flush=True)
        while True:
            array.fill(1.0)
            reduce()
            assert array.min() >= 1, f"step {state.step}: a sum without the own contribution"
            state.step += 1
            if sys.argv[2:] == ["say"]:
                print(f"step {state.step} {time.monotonic():.6f}", flush=True)
            state.commit()

    train(state)


if __name__ == "__main__":
    main()
