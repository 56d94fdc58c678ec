"""Latency of 4 KiB between two ranks of one machine, on idle and on busy cores."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.harness.alternate import alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnOneHost

TITLE = "One machine: latency of 4 KiB, 2 ranks"
DEADLINE_S = 300

TENSOR_BYTES = 4096
CALLS = 500  # a turn: as many as it takes to meet time slices where cores are busy
OPENMPI = "OpenMPI, shared memory"
WAKE_UPS = "one byte there and back"


def run(recorder: Recorder) -> None:
    with Lab([1000]) as lab:
        testbed = OnOneHost(lab, 2)
        for busy in (False, True):
            with busy_cores() if busy else contextlib.nullcontext():
                recorder.add(_measure(testbed, busy=busy))


def _measure(testbed: OnOneHost, *, busy: bool) -> Case:
    contenders = [launch.byteps(testbed), launch.gloo(testbed), launch.openmpi(testbed, OPENMPI, ring=False)]
    contenders.append(launch.wake_ups(testbed, WAKE_UPS))
    request = {"bytes": TENSOR_BYTES, "calls": CALLS}
    figures = alternate(contenders, request, turns=5 if busy else 15, deadline_s=80)
    case = Case(
        "2 ranks, each core busy with other work" if busy else "2 ranks, idle cores",
        figures[WAKE_UPS].median_s,
        "two processes that sleep while they wait: one byte there, one back (OpenMPI's ranks do not sleep)",
        figures,
    )
    case.at_most("latency / gloo's", case.ratio("byteps", "gloo"), 0.7)
    case.at_most("latency / OpenMPI's", case.ratio("byteps", OPENMPI), 1.5)
    return case


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Runs a process on each core that computes all the time, as training does."""
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
