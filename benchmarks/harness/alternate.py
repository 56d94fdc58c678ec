"""Contenders take turns, ABAB..., so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.contender import Contender, ContenderError, Step
from benchmarks.harness.plain import over_plain, plain_loop_s

_PLAIN_LOOP_S = 30.0  # at least, for one that begins before the deadline


@dataclass
class Figures:
    """The measurements of one contender."""

    seconds: list[float] = field(default_factory=list)  # time of each turn, divided by its calls
    cpu_s: list[float] = field(default_factory=list)  # of its processes
    machine_s: list[float] = field(default_factory=list)  # of the whole machine meanwhile
    failure: str | None = None
    steps: list[Step] = field(default_factory=list, repr=False)
    # Seconds of a call in each turn of each run of its plain loop.
    plain_loops: list[list[float]] = field(default_factory=list)
    plain_failure: str | None = None

    def add(self, step: Step, calls: int) -> None:
        self.seconds.append(step.seconds / calls)
        self.cpu_s.append(step.cpu_s / calls)
        self.machine_s.append(step.machine_s / calls)
        self.steps.append(step)

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    # The kernel counts hundredths of a second, so only sums are exact.
    @property
    def mean_cpu_s(self) -> float | None:
        return statistics.fmean(self.cpu_s) if self.cpu_s else None

    @property
    def mean_machine_s(self) -> float | None:
        return statistics.fmean(self.machine_s) if self.machine_s else None

    @property
    def over_plain(self) -> float | None:
        """Its time over that of its own plain loop; None: not compared."""
        if self.median_s is None or not self.plain_loops:
            return None
        return over_plain(self.median_s, self.plain_loops)

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
            "machine_s": self.machine_s,
            "failure": self.failure,
            "median_s": self.median_s,
            "mean_cpu_s": self.mean_cpu_s,
            "mean_machine_s": self.mean_machine_s,
            "plain_loops": self.plain_loops,
            "plain_failure": self.plain_failure,
            "over_plain": self.over_plain,
        }


def alternate(
    contenders: Sequence[Contender],
    request: Mapping[str, Any],
    *,
    turns: int = 5,
    deadline_s: float = 300.0,
    fewer_turns: Mapping[str, int] | None = None,
    plain_turns: int = 3,
) -> dict[str, Figures]:
    """One request of alternate_all()."""
    requests = {"": request}
    return alternate_all(
        contenders, requests, turns=turns, deadline_s=deadline_s, fewer_turns=fewer_turns, plain_turns=plain_turns
    )[""]


def alternate_all(
    contenders: Sequence[Contender],
    requests: Mapping[str, Mapping[str, Any]],
    *,
    turns: int = 5,
    deadline_s: float = 300.0,
    fewer_turns: Mapping[str, int] | None = None,
    plain_turns: int = 3,
) -> dict[str, dict[str, Figures]]:
    """Starts all, for each request one warm-up each and then turns, stops all. Who fails is out.

    The plain loops of the contenders run before the first contender starts and after the last one
    has stopped.

    Args:
        contenders: with different names.
        requests: of every step, by name; see rank.py. With no calls a step prepares and warms up.
        turns: of each; BENCH_TURNS in the environment allows fewer, also of plain loops.
        deadline_s: for all together. After it, turns that are left do not take place.
        fewer_turns: of some, by name.
        plain_turns: of each run of a plain loop; 0: no plain loops.

    Returns:
        the figures, by request and by contender.
    """
    end = time.monotonic() + deadline_s
    if limit := os.environ.get("BENCH_TURNS"):
        turns, plain_turns = min(turns, int(limit)), min(plain_turns, int(limit))
    figures = {name: {contender.name: Figures() for contender in contenders} for name in requests}
    _run_plain_loops(contenders, requests, figures, plain_turns, end)
    running = list(contenders)
    try:
        for contender in contenders:
            everywhere = [each[contender.name] for each in figures.values()]
            _attempt(contender, running, everywhere, lambda one: one.start(min(60.0, _left_s(end))))
        for name, request in requests.items():
            _take_turns(running, request, figures[name], fewer_turns or {}, turns, end)
            _pass_on_failures(figures)
    finally:
        for contender in contenders:
            contender.stop()
    _run_plain_loops(contenders, requests, figures, plain_turns, end)
    return figures


def _take_turns(
    running: list[Contender],
    request: Mapping[str, Any],
    figures: Mapping[str, Figures],
    fewer_turns: Mapping[str, int],
    turns: int,
    end: float,
) -> None:
    for contender in list(running):
        mine = figures[contender.name]
        _attempt(contender, running, [mine], lambda one: one.step({**request, "calls": 0}, _left_s(end)))
    for turn in range(turns):
        for contender in list(running):
            if turn < fewer_turns.get(contender.name, turns) and time.monotonic() < end:
                mine = figures[contender.name]
                step = _attempt(contender, running, [mine], lambda one: one.step(request, _left_s(end)))
                if step is not None:
                    mine.add(step, request.get("calls", 1))


def _pass_on_failures(figures: Mapping[str, Mapping[str, Figures]]) -> None:
    """A contender that has failed cannot answer the requests that follow."""
    for first, then in itertools.pairwise(figures.values()):
        for name, mine in first.items():
            then[name].failure = then[name].failure or mine.failure


def _run_plain_loops(
    contenders: Sequence[Contender],
    requests: Mapping[str, Mapping[str, Any]],
    figures: Mapping[str, Mapping[str, Figures]],
    turns: int,
    end: float,
) -> None:
    """A plain loop that fails is not run again; the row says so."""
    for name, request in requests.items():
        for contender in contenders:
            mine = figures[name][contender.name]
            if contender.spawn_plain is None or not turns or mine.plain_failure or time.monotonic() > end:
                continue
            try:
                mine.plain_loops.append(plain_loop_s(contender, request, turns, max(_PLAIN_LOOP_S, _left_s(end))))
            except (ContenderError, OSError) as error:
                mine.plain_failure = str(error)


def _left_s(end: float) -> float:
    return max(1.0, end - time.monotonic())


def _attempt(
    contender: Contender, running: list[Contender], figures: Sequence[Figures], action: Callable[[Contender], Any]
) -> Any:
    try:
        return action(contender)
    except (ContenderError, OSError) as error:
        for each in figures:
            each.failure = str(error)
        running.remove(contender)
        contender.stop()
        return None
