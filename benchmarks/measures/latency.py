"""Latency of 4 KiB between two ranks of one machine, on idle and on busy cores.

It is mostly the cost of wake-ups, which depends on where the kernel puts the threads: on a virtual
machine a sleeping core costs many times a switch on the same core. So each case says which cores
the ranks may use, and one compares every contender where it is fastest.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

from benchmarks.harness.alternate import alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.peers import launch
from benchmarks.peers.testbeds import Cores, OnOneHost

TITLE = "One machine: latency of 4 KiB, 2 ranks"
DEADLINE_S = 900

TENSOR_BYTES = 4096
CALLS = 500  # a turn: as many as it takes to meet time slices where cores are busy
PLACES = (Cores.ANY, Cores.OWN, Cores.ONE)
BYTEPS, C10D = "byteps", "byteps, torch.distributed"
OPENMPI = "OpenMPI, shared memory"
WAKE_UPS = "one byte there and back"


def run(recorder: Recorder) -> None:
    with Lab([1000]) as lab:
        idle = {}
        for cores in PLACES:
            case = idle[cores] = _measure(OnOneHost(lab, 2, cores), f"2 ranks, {cores.value}")
            if cores is not Cores.ONE:  # there a byte wakes no core, unlike in training
                _add_bound_goal(case)
            recorder.add(case)
        recorder.add(_best(idle))
        with busy_cores():
            busy = _measure(OnOneHost(lab, 2), "2 ranks, each core busy with other work", turns=5)
        _add_bound_goal(busy)
        recorder.add(busy)


def _measure(testbed: OnOneHost, name: str, turns: int = 11) -> Case:
    contenders = [launch.byteps(testbed), launch.c10d(testbed, "byteps", C10D)]
    contenders += [launch.gloo(testbed), launch.openmpi(testbed, OPENMPI, ring=False)]
    contenders.append(launch.wake_ups(testbed, WAKE_UPS))
    request = {"collective": "all_reduce", "bytes": TENSOR_BYTES, "calls": CALLS}
    figures = alternate(contenders, request, turns=turns, deadline_s=200, plain_turns=turns)
    bound = "two processes that sleep while they wait: one byte there, one back (OpenMPI's ranks do not sleep)"
    case = Case(name, figures[WAKE_UPS].median_s, bound, figures)
    _add_peer_goals(case)
    return case


def _best(cases: Mapping[Cores, Case]) -> Case:
    """Each contender where it is fastest."""
    figures, where = {}, {}
    for name in (BYTEPS, C10D, "gloo", OPENMPI):
        medians = {cores: median for cores, case in cases.items() if (median := case.median_s(name))}
        best = min(medians, key=lambda cores: medians[cores], default=Cores.ANY)
        figures[name] = cases[best].figures[name]
        where[f"{name} is fastest with"] = best.value
    case = Case("2 ranks, each contender where it is fastest", None, "", figures, notes=where)
    _add_peer_goals(case)
    return case


def _add_bound_goal(case: Case) -> None:
    case.at_most("latency / one byte there and back", case.over_bound(BYTEPS), 2.5)


def _add_peer_goals(case: Case) -> None:
    case.at_most("latency / gloo's", case.ratio(BYTEPS, "gloo"), 0.7)
    case.at_most("latency of torch.distributed / gloo's", case.ratio(C10D, "gloo"), 0.7)
    case.at_most("latency / OpenMPI's", case.ratio(BYTEPS, OPENMPI), 1.5)


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
