"""torch.distributed without the harness: plain_c10d.py BACKEND COLLECTIVE TENSORS BYTES CALLS TURNS.

Rank 0 prints the seconds of one call, a line for each turn. A call starts the collective for all
tensors and waits for all of them.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

backend, collective = sys.argv[1:3]
count, size_bytes, calls, turns = map(int, sys.argv[3:])
rank, size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
dist.init_process_group(backend, init_method=os.environ["BENCH_STORE"], rank=rank, world_size=size)
tensors = [torch.zeros(size_bytes // 4) for _ in range(count)]
gathered = [torch.zeros_like(tensors[0]) for _ in range(size)]


def call() -> None:
    if count > 1:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
    elif collective == "all_reduce":
        dist.all_reduce(tensors[0])
    elif collective == "broadcast":
        dist.broadcast(tensors[0], 0)
    else:
        dist.all_gather(gathered, tensors[0])


call()
for _ in range(turns):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    dist.barrier()
    if rank == 0:
        print((time.perf_counter() - begin) / calls, flush=True)
dist.destroy_process_group()
