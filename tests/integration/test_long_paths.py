"""Jobs over paths with long round trips, in the lab of benchmarks/lab/."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.lab import Impairments, Lab, why_impossible
from benchmarks.lab.job import LabJob
from benchmarks.lab.relay import why_no_relay

IMPOSSIBLE = why_impossible() or why_no_relay()
pytestmark = [
    pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"no lab on this machine: {IMPOSSIBLE}"),
    pytest.mark.timeout(120),
]

ROOT = Path(__file__).resolve().parents[2]
# Receives 16 MiB over new connections, and prints what the kernel has seen read in a round trip.
PROGRAM = """
import subprocess
import numpy as np
import byteps

byteps.init()
byteps.push_pull(np.ones(4 << 20, np.float32), name="x")
listed = subprocess.run(["ss", "-tinH", "state", "established"], capture_output=True, text=True, check=True)
print(listed.stdout, flush=True)
byteps.shutdown()
"""


def test_a_new_connection_gets_a_large_receive_window() -> None:
    """With the window of 128 KiB that connections begin with, a path of 100 ms carries 1.3 MB/s."""
    with Lab([200, 200], impairments=Impairments(delay_ms=50)) as lab:
        job = LabJob(lab, 2, 0, {"BYTEPS_LOG_LEVEL": "error"})
        ranks = [
            lab.popen(
                host.number,
                [sys.executable, "-c", PROGRAM],
                env=job.environment(host) | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for host in lab.hosts
        ]
        outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    for output in outputs:
        spaces = [int(space) for space in re.findall(r"rcv_space:(\d+)", output)]
        assert max(spaces) > 512 << 10, output
