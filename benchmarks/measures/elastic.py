"""Workers of an elastic job are killed in the middle of a step, and come; beside torchrun.

And what it costs that a job is elastic, while nothing happens.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.alternate import Figures
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.measures.faults import AT, RATE_MBPS, TENSOR_BYTES, WORKERS, Steps, output, start, time_lost, torchrun
from benchmarks.peers.testbeds import OnHosts

TITLE = "Network lab: 64 MiB float32, 200 Mbit/s, 4 workers: one is killed in the middle of a step, one comes"
DEADLINE_S = 900

_STEPS_OF_A_TURN = 6  # the first one is not counted
_TURNS = 3
_FIXED, _ELASTIC = "byteps, fixed size", "byteps"


def run(recorder: Recorder) -> None:
    recorder.add(_cost())
    undisturbed, extra = Figures(), []
    for at in AT:
        with elastic_steps() as job:
            extra.append(time_lost(job.steps, at, job.workers[-1].kill, undisturbed))
    case = Case("a worker is killed", None, "0.5 s", {_ELASTIC: undisturbed})
    case.notes["seconds lost"] = [round(each, 3) for each in extra]
    case.at_most("seconds lost", max(extra), 0.5)
    recorder.add(case)
    recorder.add(_newcomer())
    recorder.add(torchrun())


def _cost() -> Case:
    figures = {_ELASTIC: Figures(), _FIXED: Figures()}
    for _ in range(_TURNS):
        for name, each in figures.items():
            with elastic_steps(is_elastic=name == _ELASTIC) as job:
                each.seconds += _times(job.steps.wait_for(_STEPS_OF_A_TURN))
    case = Case("nothing happens", None, "", figures)
    case.at_most("time / time in a job of fixed size", case.ratio(_ELASTIC, _FIXED), 1.01)
    return case


def _newcomer() -> Case:
    """The state is one number, so its broadcast takes no time."""
    undisturbed = Figures()
    with elastic_steps() as job:
        undisturbed.seconds += _times(job.steps.wait_for(5))
        before = len(job.steps.ends())
        job.start_worker()
        while job.steps.text.count("begins") <= WORKERS:
            job.steps.wait_for(len(job.steps.ends()) + 1)
        times = _times(job.steps.wait_for(len(job.steps.ends()) + 2)[before - 1 :])
    case = Case("a worker comes", None, "", {_ELASTIC: undisturbed})
    case.notes["seconds of the steps meanwhile"] = [round(each, 3) for each in times]
    # After it has come, five machines have to sum: 2 n (n - 1) / n^2 is 1.6 instead of 1.5.
    case.at_most("longest step meanwhile / step", max(times) / statistics.median(undisturbed.seconds), 1.1 * 1.6 / 1.5)
    return case


def _times(ends: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(ends)]


@dataclass
class ElasticJob:
    """A job with a worker on each host but the last one of the lab."""

    lab: Lab
    path: Path
    steps: Steps
    environments: list[dict[str, str]]
    is_elastic: bool
    workers: list[subprocess.Popen[Any]] = field(default_factory=list)

    def start_worker(self) -> None:
        """Starts one on the next host. The first one prints the ends of steps."""
        host = len(self.workers)
        command = [sys.executable, "-m", "benchmarks.peers.elastic_rank", str(TENSOR_BYTES), *["say"][host:]]
        environment = self.environments[host] | {"BYTEPS_ELASTIC": str(int(self.is_elastic))}
        self.workers.append(start(self.lab, host, command, environment, self.path))


@contextlib.contextmanager
def elastic_steps(is_elastic: bool = True) -> Iterator[ElasticJob]:
    """Starts a job; `is_elastic`: or one of fixed size."""
    with Lab([RATE_MBPS] * (WORKERS + 1)) as lab, output() as path:
        fixed = OnHosts(lab, WORKERS).byteps_environments({})
        more = OnHosts(lab, WORKERS + 1).byteps_environments({"BYTEPS_GATHER_S": "0.05"})
        job = ElasticJob(lab, path, Steps(path), more if is_elastic else fixed, is_elastic)
        if is_elastic:
            coordinator = {"DMLC_ROLE": "coordinator", "BYTEPS_INITIAL_WORKERS": str(WORKERS)}
            start(lab, 0, [sys.executable, "-m", "byteps.server"], more[0] | coordinator, path)
        for _ in range(WORKERS):
            job.start_worker()
        yield job
