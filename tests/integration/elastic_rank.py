"""A worker of an elastic job: sums tensors in steps, and commits after each. It prints each sum.

Worker k contributes 2**k, so a sum tells who has contributed. Arguments: k, number of steps, pause
in seconds.
"""

from __future__ import annotations

import sys
import time
import zlib

import numpy as np

import byteps
from byteps import elastic

number, steps, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
SIZES = (1, 1000, 200_000)

byteps.init()
state = elastic.ObjectState(step=0)
state.register_reset_callbacks([lambda: print(f"is rank {byteps.rank()} of {byteps.size()}", flush=True)])


@elastic.run
def train(state: elastic.ObjectState) -> None:
    print(f"begins at step {state.step}", flush=True)
    while state.step < steps:
        handles = [
            byteps.push_pull_async(np.full(size, 1 << number, np.int64), average=False, name=f"tensor {size}")
            for size in SIZES
        ]
        sums = [byteps.synchronize(handle) for handle in handles]
        assert all((each >> number & 1).all() for each in sums), "a sum without the own contribution"
        print(f"step {state.step} sums", *(f"{each[0]}+{zlib.crc32(each)}" for each in sums), flush=True)
        state.step += 1
        time.sleep(pause_s)
        state.commit()


train(state)
print(f"done as rank {byteps.rank()} of {byteps.size()}", flush=True)
byteps.shutdown()
