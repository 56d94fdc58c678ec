"""A rank that trains a model of several tensors, whose servers a test ends: lost_servers_rank.py STEPS PAUSE_S.

Prints "step N" after each step and at the end the SHA-256 of the parameters, which depends on every
bit of every sum. Prints after a third of the steps and at the end what the process holds.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np

import byteps as bps

# Some of one partition and some of many; one that is used in every third step only.
SIZES = (7, 1000, 1 << 16, 300_001, 1 << 19)


def gradient(index: int, step: int, parameters: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng((index, step, bps.rank())).standard_normal(parameters.size, np.float32)
    return parameters * np.float32(0.01) + noise


def describe_holdings() -> str:
    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return f"holds {descriptors} descriptors and {pages * os.sysconf('SC_PAGE_SIZE') >> 20} MiB"


def main() -> None:
    steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
    bps.init()
    model = [bps.broadcast(np.full(size, 1 + bps.rank(), np.float32), 0, f"begin{size}") for size in SIZES]
    for step in range(steps):
        used = [index for index in range(len(SIZES)) if index != 1 or step % 3 == 0]
        handles = {
            index: bps.push_pull_async(gradient(index, step, model[index]), name=f"layer{index}", op=bps.Average)
            for index in used
        }
        for index, handle in handles.items():
            model[index] -= np.float32(0.1) * bps.synchronize(handle)
        print("step", step, flush=True)
        if step in {steps // 3, steps - 1}:
            print(describe_holdings(), flush=True)
        time.sleep(pause_s * (1 + bps.rank()) / bps.size())
    digest = hashlib.sha256(b"".join(parameters.tobytes() for parameters in model)).hexdigest()
    print("sha", digest, "servers lost", bps.metrics()["servers_lost"], flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
