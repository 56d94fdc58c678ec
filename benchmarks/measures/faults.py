"""A server is lost in the middle of a step; beside torchrun, which starts all workers again.

And what it costs while nothing is lost.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.alternate import Figures, alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Impairments, Lab
from benchmarks.lab.lab import INTERFACE
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts, base_environment

TITLE = "Network lab: 64 MiB float32, 200 Mbit/s, (4, 2): a process is lost in the middle of a step"
DEADLINE_S = 900

RATE_MBPS = 200
TENSOR_BYTES = 64 << 20
WORKERS, SERVERS = 4, 2
FAULT_AFTER = 4  # steps; the first one is not counted
STEPS_AFTER = 2  # that must follow
AT = (0.2, 0.5, 0.8)  # parts of a step
TIMEOUT_S = 4.0  # BYTEPS_TIMEOUT_S
PATIENCE_S = 120.0
_PROGRAM = ["-m", "benchmarks.peers.fault_rank"]
_RENDEZVOUS_PORT = 29350


class Steps:
    """The times of steps that a program prints."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def text(self) -> str:
        """What the program has printed."""
        return self._path.read_text()

    def ends(self) -> list[float]:
        return [float(end) for end in re.findall(r"^step \d+ ([\d.]+)$", self.text, re.MULTILINE)]

    def wait_for(self, number: int) -> list[float]:
        """Returns the ends of all steps when there are so many.

        Raises:
            RuntimeError: they do not come.
        """
        deadline = time.monotonic() + PATIENCE_S
        while len(self.ends()) < number:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{number} steps did not come: {self.text[-200:]}")
            time.sleep(0.005)
        return self.ends()


def run(recorder: Recorder) -> None:
    recorder.add(_cost())
    undisturbed, extra = Figures(), []
    for at in AT:
        with byteps_steps() as (_, steps, processes):
            extra.append(time_lost(steps, at, processes[-1].kill, undisturbed))
    recorder.add(_case("a server is killed", undisturbed, extra, 0.2))
    undisturbed = Figures()
    with byteps_steps(Impairments()) as (lab, steps, _):
        silent = WORKERS + SERVERS - 1

        def cut() -> None:
            lab.relay.cut(sender=silent)
            lab.relay.cut(receiver=silent)

        extra = [time_lost(steps, AT[1], cut, undisturbed)]
    recorder.add(_case("a server becomes silent", undisturbed, extra, TIMEOUT_S))
    recorder.add(torchrun())


def torchrun() -> Case:
    """Measures torchrun, which starts all workers again when one is killed."""
    undisturbed = Figures()
    case = Case("torchrun (gloo): a worker is killed, all start again", None, "", {"gloo": undisturbed})
    with torchrun_steps() as (steps, pid_of_worker):

        def kill() -> None:
            os.kill(pid_of_worker(), signal.SIGKILL)

        try:
            case.notes["seconds lost"] = [round(time_lost(steps, AT[1], kill, undisturbed), 3)]
        except RuntimeError as error:
            case.notes["steps end"] = str(error)
    return case


def _cost() -> Case:
    """Measures what it costs that servers may be lost, while none is."""
    off = "byteps, BYTEPS_FAILOVER=off"
    with Lab([RATE_MBPS] * (WORKERS + SERVERS)) as lab:
        hosts = OnHosts(lab, WORKERS, SERVERS)
        contenders = [launch.byteps(hosts), launch.byteps(hosts, off, {"BYTEPS_FAILOVER": "off"})]
        figures = alternate(contenders, {"bytes": TENSOR_BYTES}, turns=7, deadline_s=200, plain_turns=1)
    case = Case("nothing is lost", None, "", figures, gigabytes=WORKERS * TENSOR_BYTES / 1e9)
    case.at_most("time / time with BYTEPS_FAILOVER=off", case.ratio("byteps", off), 1.01)
    return case


def _case(name: str, undisturbed: Figures, extra: list[float], beyond_s: float) -> Case:
    case = Case(name, None, f"a step, and {beyond_s:g} s", {"byteps": undisturbed})
    case.notes["seconds lost"] = [round(each, 3) for each in extra]
    step_s = undisturbed.median_s
    case.at_most("seconds lost beyond a step", max(extra) - step_s if step_s else None, beyond_s)
    return case


def time_lost(steps: Steps, at: float, fault: Callable[[], Any], undisturbed: Figures) -> float:
    """Causes the fault in the step after the next, and returns how much later the next steps end.

    Adds the steps before to `undisturbed`.
    """
    ends = steps.wait_for(FAULT_AFTER)
    times = [later - earlier for earlier, later in pairwise(ends)]
    undisturbed.seconds += times
    step_s = statistics.median(times)
    time.sleep(max(0.0, ends[-1] + at * step_s - time.monotonic()))
    fault()
    before = len(steps.ends())
    ends = steps.wait_for(before + 1 + STEPS_AFTER)
    return max(later - earlier for earlier, later in pairwise(ends[before - 1 :])) - step_s


@contextlib.contextmanager
def byteps_steps(impairments: Impairments | None = None) -> Iterator[tuple[Lab, Steps, list[subprocess.Popen[Any]]]]:
    """A job; its processes are the workers by rank, then the servers."""
    settings = {"BYTEPS_TIMEOUT_S": f"{TIMEOUT_S:g}"}
    with Lab([RATE_MBPS] * (WORKERS + SERVERS), impairments=impairments) as lab, output() as path:
        environments = OnHosts(lab, WORKERS, SERVERS).byteps_environments(settings)
        processes = []
        for host, environment in enumerate(environments):
            program = [*_PROGRAM, "byteps", str(TENSOR_BYTES)] if host < WORKERS else ["-m", "byteps.server"]
            processes.append(start(lab, host, [sys.executable, *program], environment, path))
        yield lab, Steps(path), processes


@contextlib.contextmanager
def torchrun_steps() -> Iterator[tuple[Steps, Callable[[], int]]]:
    """Runs torchrun on each host; the function returns the process number of the last host's worker."""
    with Lab([RATE_MBPS] * WORKERS) as lab, output() as path:
        agents = []
        for host in lab.hosts:
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(WORKERS), "--max-restarts", "3"]
            command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{lab.hosts[0].address}:{_RENDEZVOUS_PORT}"]
            command += ["--rdzv-conf", f"is_host={int(host.number == 0)}", "--local-addr", host.address]
            command += [*_PROGRAM, "torchrun", str(TENSOR_BYTES)]
            # With one store for all rounds, new workers find the addresses of the old ones.
            environment = {"GLOO_SOCKET_IFNAME": INTERFACE, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            agents.append(start(lab, host.number, command, environment, path))

        def worker() -> int:
            listed = subprocess.run(
                ["pgrep", "-P", str(agents[-1].pid), "-f", "fault_rank"], capture_output=True, text=True, check=True
            )
            return int(listed.stdout.split()[0])

        yield Steps(path), worker


def start(lab: Lab, host: int, command: list[str], environment: dict[str, str], path: Path) -> subprocess.Popen[Any]:
    """Starts a process on a host, which appends its output to the file."""
    with path.open("a") as output:
        return lab.popen(
            host, command, env=base_environment() | environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


@contextlib.contextmanager
def output() -> Iterator[Path]:
    """A file for the output of all processes."""
    with tempfile.TemporaryDirectory(prefix="bps-faults-") as folder:
        path = Path(folder) / "output"
        path.touch()
        yield path
