"""A job of many ranks on this machine, in processes that are forked from this one.

    python light_ranks.py RANKS

Prints what rank 0 measured, in JSON: its memory and limit of descriptors, how long the start took. Its
exit code is that of the first rank that failed. Expects the environment of a job, without ranks.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import byteps as bps
from byteps.runtime import current_job


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def run_rank(rank: int) -> None:
    os.environ["DMLC_WORKER_ID"] = str(rank)
    before = resident_bytes()
    begun_s = time.monotonic()
    bps.init()
    started_s = time.monotonic() - begun_s
    current_job().node.barrier()
    if rank == 0:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        report = {
            "started_s": started_s,
            "bytes": resident_bytes() - before,
            "soft_descriptors": soft,
            "hard_descriptors": hard,
        }
        print(json.dumps(report), flush=True)
    current_job().node.barrier()
    bps.shutdown()


def main() -> int:
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    assert threads == 1, f"{threads} threads: a fork would lose all but one"
    ranks = []
    for rank in range(int(sys.argv[1])):
        pid = os.fork()
        if pid == 0:
            run_rank(rank)
            os._exit(0)
        ranks.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    return next((code for code in codes if code != 0), 0)


if __name__ == "__main__":
    sys.exit(main())
