"""Several processes that do one thing together, again and again, when told to."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.rank import CONTROL

_CLOCK_HZ = os.sysconf("SC_CLK_TCK")
_GOODBYE_S = 5.0
_LAST_WORDS_S = 1.0


class ContenderError(Exception):
    """A contender does not work; the message ends with what its processes wrote."""


@dataclass(frozen=True)
class Step:
    """The cost of one step."""

    seconds: float  # time from the first rank's begin to the last one's end
    cpu_s: float  # user and system time of all processes, in units of 1 / CLK_TCK
    machine_s: float  # time that the machine's processors were not idle meanwhile, in the same units
    # Answers of the ranks, in their order.
    ranks: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Started:
    """The processes that `Contender.spawn` has started."""

    processes: list[subprocess.Popen[Any]]
    ranks: int
    # Servers, whose CPU time is added.
    counted: list[subprocess.Popen[Any]] = field(default_factory=list)


# Given the variables to add to the environment and a file for all output, starts the processes.
Spawn = Callable[[Mapping[str, str], Any], Started]
# Given the arguments of a request and the number of turns, starts the contender's plain loop: a
# program that knows nothing of the harness. The file gets all output; a line with the seconds of
# one call for each turn.
SpawnPlain = Callable[[Mapping[str, Any], int, Any], Started]


class Contender:
    """A contender, whose processes live from start() to stop()."""

    def __init__(self, name: str, spawn: Spawn, spawn_plain: SpawnPlain | None = None) -> None:
        self.name = name
        self.spawn_plain = spawn_plain
        self._spawn = spawn
        self._cleanup = contextlib.ExitStack()
        self._links: list[socket.socket] = []
        self._readers: list[Any] = []
        self._processes: Sequence[subprocess.Popen[Any]] = ()
        self._patience_s = _GOODBYE_S  # time limit for its end
        self.rank_pids: list[int] = []  # valid after start()
        self._pids: list[int] = []
        self._log: Path | None = None

    def start(self, deadline_s: float = 60.0) -> None:
        """Returns when all ranks are ready for steps.

        Raises:
            ContenderError: they are not by the deadline, or one has ended.
        """
        folder = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory()))
        self._log = folder / "output"
        listener = self._cleanup.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / "control"))
        listener.listen(64)
        output = self._cleanup.enter_context(self._log.open("wb"))
        started = self._spawn({CONTROL: str(folder / "control")}, output)
        self._processes = started.processes
        self._cleanup.callback(kill, started.processes)
        try:
            links = self._accept_ranks(listener, started, time.monotonic() + deadline_s)
        except BaseException:
            self.stop()
            raise
        ordered = sorted(links, key=lambda each: each[0]["rank"])
        self._links = [link for _, link, _ in ordered]
        self._readers = [reader for _, _, reader in ordered]
        self.rank_pids = [hello["pid"] for hello, _, _ in ordered]
        self._pids = self.rank_pids + [process.pid for process in started.counted]

    def step(self, request: Mapping[str, Any], deadline_s: float = 120.0) -> Step:
        """Runs one step on all ranks at the same time.

        Args:
            request: what the rank program understands; `calls` says how often.
            deadline_s: after which it counts as failed.

        Raises:
            ContenderError: a rank has ended or is late. stop() is all that can follow.
        """
        if not self._links:
            raise ContenderError(f"{self.name} has not started")
        cpu_before = sum(map(cpu_seconds, self._pids))
        machine_before = machine_busy_s()
        line = json.dumps({"calls": 1, **request}).encode() + b"\n"
        end = time.monotonic() + deadline_s
        try:
            for link in self._links:
                link.sendall(line)
            answers = self._read_all(end)
        except OSError as error:
            _await_one_end(self._processes)  # its last output comes after it has released its link
            self._patience_s = 0.0
            raise self._failure(f"a step: {error}") from None
        machine_s = machine_busy_s() - machine_before
        cpu_s = sum(map(cpu_seconds, self._pids)) - cpu_before
        seconds = max(answer["end"] for answer in answers) - min(answer["begin"] for answer in answers)
        return Step(seconds, cpu_s, machine_s, answers)

    def stop(self) -> None:
        """Asks the ranks to leave; kills, by pid, what is left after a moment. Can be repeated."""
        for link in self._links:
            with contextlib.suppress(OSError):
                link.sendall(b"{}\n")
        end = time.monotonic() + self._patience_s
        for reader, link in zip(self._readers, self._links, strict=True):
            with contextlib.suppress(OSError):
                link.settimeout(max(0.01, end - time.monotonic()))
                reader.readline()  # the end of its output: it has left
            reader.close()
            link.close()
        self._links, self._readers, self._pids = [], [], []
        self._cleanup.close()

    def _accept_ranks(self, listener: socket.socket, started: Started, end: float) -> list[tuple[Any, Any, Any]]:
        links: list[tuple[Any, Any, Any]] = []
        listener.settimeout(0.2)
        while len(links) < started.ranks:
            if dead := next((each for each in started.processes if each.poll()), None):
                raise self._failure(f"start: a process ended with {dead.returncode}")
            if time.monotonic() > end:
                raise self._failure(f"start: {len(links)} of {started.ranks} ranks are ready")
            with contextlib.suppress(TimeoutError):
                link, _ = listener.accept()
                link.settimeout(max(0.01, end - time.monotonic()))
                reader = link.makefile("r", encoding="utf-8")
                links.append((json.loads(reader.readline()), link, reader))
        return links

    def _read_all(self, end: float) -> list[dict[str, Any]]:
        """Reads an answer of each rank. Raises as soon as a rank ends."""
        answers: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as waiting:
            for rank, link in enumerate(self._links):
                link.settimeout(None)
                waiting.register(link, selectors.EVENT_READ, rank)
            while len(answers) < len(self._links):
                ready = waiting.select(max(0.0, end - time.monotonic()))
                if not ready:
                    late = sorted(set(range(len(self._links))) - set(answers))
                    raise TimeoutError(f"timed out: no answer from ranks {late}")
                for key, _ in ready:
                    line = self._readers[key.data].readline()
                    if not line:
                        raise ConnectionError(f"rank {key.data} has ended")
                    answers[key.data] = json.loads(line)
                    waiting.unregister(key.fileobj)
        return [answers[rank] for rank in range(len(self._links))]

    def _failure(self, what: str) -> ContenderError:
        written = self._log.read_text(errors="replace")[-2000:] if self._log else ""
        return ContenderError(f"{self.name}: {what}\n{written}".rstrip())


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads so far; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _CLOCK_HZ


def machine_busy_s() -> float:
    """Time that all processors together have not been idle, since a moment that does not change.

    The kernel measures idle time exactly, and samples all else. Interrupts are no idle time.
    """
    ticks = Path("/proc/stat").read_text().split(None, 6)[1:6]
    return time.monotonic() * (os.cpu_count() or 1) - (int(ticks[3]) + int(ticks[4])) / _CLOCK_HZ


def _await_one_end(processes: Sequence[subprocess.Popen[Any]]) -> None:
    end = time.monotonic() + _LAST_WORDS_S
    while time.monotonic() < end and all(process.poll() is None for process in processes):
        time.sleep(0.02)


def kill(processes: Sequence[subprocess.Popen[Any]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
