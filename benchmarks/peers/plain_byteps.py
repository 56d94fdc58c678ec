"""byteps without the harness: plain_byteps.py TENSORS BYTES CALLS TURNS.

Rank 0 prints the seconds of one call, a line for each turn. A call starts a push_pull of each
tensor and waits for all of them.
"""

import sys
import time

import torch

import byteps.torch as bps

count, size_bytes, calls, turns = map(int, sys.argv[1:])
bps.init()
tensors = {f"tensor.{index}": torch.zeros(size_bytes // 4) for index in range(count)}


def call() -> None:
    started = [bps.push_pull_async_inplace(tensor, average=False, name=name) for name, tensor in tensors.items()]
    for handle in started:
        bps.synchronize(handle)


def barrier() -> None:
    bps.push_pull_inplace(torch.zeros(1), average=False, name="barrier")


call()
for _ in range(turns):
    barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    barrier()
    if bps.rank() == 0:
        print((time.perf_counter() - begin) / calls, flush=True)
bps.shutdown()
