"""A job of many ranks starts, and rank 0 needs little memory for what it knows of the others."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from support.job import job_environment

PROGRAM = Path(__file__).parents[1] / "support" / "light_ranks.py"
RANKS = 256
DEADLINE_S = 240.0
# Of rank 0, with its own node and the scheduler. 4,096 ranks may take 200 MB.
MOST_BYTES = 60 << 20


def test_a_job_of_many_ranks_starts_and_takes_little_memory() -> None:
    with socket.socket() as holder:  # nobody else gets the port
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        env = job_environment(holder.getsockname()[1], 1) | {
            "DMLC_NUM_WORKER": str(RANKS),
            "DMLC_NUM_SERVER": "0",
            "BYTEPS_HOST_SCHEDULER": "1",
            "BYTEPS_LOCAL_RANK": "0",
            "BYTEPS_SERVER_ENGINE_THREAD": "1",
            "BYTEPS_START_TIMEOUT_S": "120",
            "BYTEPS_TIMEOUT_S": "60",
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [sys.executable, str(PROGRAM), str(RANKS)]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, output
    report = json.loads(output)
    assert report["bytes"] < MOST_BYTES, report
    assert report["soft_descriptors"] == min(report["hard_descriptors"], 1 << 17), report
