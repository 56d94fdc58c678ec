"""Contenders take turns, ABAB..., so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.contender import Contender, ContenderError, Step


@dataclass
class Figures:
    """The measurements of one contender."""

    seconds: list[float] = field(default_factory=list)  # time of each turn, divided by its calls
    cpu_s: list[float] = field(default_factory=list)
    failure: str | None = None
    steps: list[Step] = field(default_factory=list, repr=False)

    def add(self, step: Step, calls: int) -> None:
        self.seconds.append(step.seconds / calls)
        self.cpu_s.append(step.cpu_s / calls)
        self.steps.append(step)

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    # The kernel counts hundredths of a second, so only sums are exact.
    def mean_cpu_s(self) -> float | None:
        return statistics.fmean(self.cpu_s) if self.cpu_s else None

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
            "failure": self.failure,
            "median_s": self.median_s,
            "mean_cpu_s": self.mean_cpu_s,
        }


def alternate(
    contenders: Sequence[Contender],
    request: Mapping[str, Any],
    *,
    turns: int = 5,
    deadline_s: float = 300.0,
    fewer_turns: Mapping[str, int] | None = None,
) -> dict[str, Figures]:
    """Starts all, one warm-up each, then turns, stops all. Who fails is out; the others go on.

    Args:
        contenders: with different names.
        request: of every step; see rank.py. With no calls it prepares and warms up.
        turns: of each; BENCH_TURNS in the environment allows fewer.
        deadline_s: for all together. After it, turns that are left do not take place.
        fewer_turns: of some, by name.
    """
    end = time.monotonic() + deadline_s
    turns = min(turns, int(os.environ.get("BENCH_TURNS", turns)))
    figures = {contender.name: Figures() for contender in contenders}
    running = list(contenders)

    def left_s() -> float:
        return max(1.0, end - time.monotonic())

    try:
        for contender in contenders:
            _attempt(contender, running, figures, lambda one: one.start(min(60.0, left_s())))
        for contender in list(running):
            _attempt(contender, running, figures, lambda one: one.step({**request, "calls": 0}, left_s()))
        for turn in range(turns):
            for contender in list(running):
                if turn < (fewer_turns or {}).get(contender.name, turns) and time.monotonic() < end:
                    step = _attempt(contender, running, figures, lambda one: one.step(request, left_s()))
                    if step is not None:
                        figures[contender.name].add(step, request.get("calls", 1))
    finally:
        for contender in contenders:
            contender.stop()
    return figures


def _attempt(
    contender: Contender, running: list[Contender], figures: dict[str, Figures], action: Callable[[Contender], Any]
) -> Any:
    try:
        return action(contender)
    except (ContenderError, OSError) as error:
        figures[contender.name].failure = str(error)
        running.remove(contender)
        contender.stop()
        return None
