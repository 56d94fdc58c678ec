"""OpenMPI without the harness: plain_openmpi.py BYTES CALLS TURNS.

Rank 0 prints the seconds of one call, a line for each turn.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

size_bytes, calls, turns = map(int, sys.argv[1:])
world = MPI.COMM_WORLD
array = np.zeros(size_bytes // 4, np.float32)
world.Allreduce(MPI.IN_PLACE, array)
for _ in range(turns):
    world.Barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        world.Allreduce(MPI.IN_PLACE, array)
    world.Barrier()
    if world.rank == 0:
        print((time.perf_counter() - begin) / calls, flush=True)
