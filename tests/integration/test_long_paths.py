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


# Tensors of several partitions, each rank in an order of its own, and small urgent ones between them.
TURNS = """
import random, sys
import numpy as np
import byteps

byteps.init()
rank = byteps.rank()
order = random.Random(rank)
for step in range(6):
    sizes = [(1 << 18) + 1000 * number if number % 2 else 1000 for number in range(12)]
    inputs = [np.random.default_rng([step, number, rank]).standard_normal(size) for number, size in enumerate(sizes)]
    handles = {}
    for number in order.sample(range(len(sizes)), len(sizes)):
        values = inputs[number].astype(np.float32)
        handles[number] = byteps.push_pull_async(values, name=f"t{number}", average=False, priority=-number % 5)
        if step == 3 and number == 5 and rank == 1 and "die" in sys.argv:
            byteps.synchronize(handles.pop(number))
            import os
            os._exit(7)
    for number, handle in handles.items():
        parts = [
            np.random.default_rng([step, number, other]).standard_normal(sizes[number]).astype(np.float32)
            for other in range(2)
        ]
        assert np.array_equal(byteps.synchronize(handle), parts[0] + parts[1]), (step, number)
print("all sums are right", flush=True)
byteps.shutdown()
"""


def _run_turns(*arguments: str) -> tuple[list[int | None], list[str]]:
    with Lab([200, 200], impairments=Impairments(delay_ms=5, loss_percent=1)) as lab:
        job = LabJob(lab, 2, 0, {"BYTEPS_LOG_LEVEL": "info", "BYTEPS_NIC_MBPS": "0", "BYTEPS_TIMEOUT_S": "10"})
        ranks = [
            lab.popen(
                host.number,
                [sys.executable, "-c", TURNS, *arguments],
                env=job.environment(host) | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for host in lab.hosts
        ]
        outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert any("contributions and answers take turns" in output for output in outputs), outputs
    return [rank.returncode for rank in ranks], outputs


def test_two_workers_take_turns_on_a_path_that_loses_packets() -> None:
    codes, outputs = _run_turns()
    assert codes == [0, 0], outputs
    assert all("all sums are right" in output for output in outputs), outputs


def test_a_worker_that_dies_between_turns() -> None:
    codes, outputs = _run_turns("die")
    assert codes == [1, 7], outputs
    assert re.search(r"byteps\.errors\.\w+: .*rank 1", outputs[0]), outputs
