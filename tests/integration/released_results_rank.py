"""A rank that uses each name once, then some again: released_results_rank.py.

It prints how many bytes of memory it has before, after, and when the results have been released. Then
a test ends the server, and the names are used again: their rounds go on, and the sums are exact.
"""

from __future__ import annotations

import os
import time

import numpy as np
from support.processes import resident_bytes

import byteps as bps
from byteps.ops import Buffer, Sum, push_pull_and_wait

NAMES = 48
BYTES = 4 << 20
DEADLINE_S = 60


def reduce_all(value: float) -> None:
    """Reuses one array, so that only what byteps holds needs more memory."""
    for number in range(NAMES):
        array.fill(value + bps.rank())
        push_pull_and_wait(Buffer(array.ctypes.data, array.nbytes, "float32", array), f"once.{number}", Sum)
        assert (array == bps.size() * value + sum(range(bps.size()))).all()


def held_bytes() -> int:
    return resident_bytes(os.getpid()) - before


bps.init()
array = np.zeros(BYTES // 4, np.float32)
warm_up = np.ones(BYTES // 4, np.float32)
push_pull_and_wait(Buffer(warm_up.ctypes.data, warm_up.nbytes, "float32", warm_up), "warm up", Sum)
array.fill(1)
before = resident_bytes(os.getpid())
reduce_all(1)
held = held_bytes()
deadline_s = time.monotonic() + DEADLINE_S
while held_bytes() > held // 4 and time.monotonic() < deadline_s:
    time.sleep(0.05)
print(f"held {held} bytes, later {held_bytes()}", flush=True)
while not bps.metrics()["servers_lost"] and time.monotonic() < deadline_s:
    time.sleep(0.05)
reduce_all(2)
print(f"sums are right, servers lost {bps.metrics()['servers_lost']:.0f}", flush=True)
bps.shutdown()
