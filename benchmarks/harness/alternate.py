"""Contenders take turns, ABAB..., so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.contender import Contender, ContenderError, Step


@dataclass
class Figures:
    """Of one contender."""

    seconds: list[float] = field(default_factory=list)  # of each turn, divided by its calls
    cpu_s: list[float] = field(default_factory=list)
    failure: str | None = None
    steps: list[Step] = field(default_factory=list, repr=False)

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def mean_cpu_s(self) -> float | None:  # the kernel counts in hundredths of a second: a sum is what it knows
        return statistics.fmean(self.cpu_s) if self.cpu_s else None

    def as_json(self) -> dict[str, Any]:
        figures = asdict(self)
        del figures["steps"]
        return figures | {"median_s": self.median_s, "mean_cpu_s": self.mean_cpu_s}


def alternate(
    contenders: Sequence[Contender],
    request: Mapping[str, Any],
    *,
    repeats: int = 5,
    deadline_s: float = 300.0,
    least_repeats: int = 5,
) -> dict[str, Figures]:
    """Starts all, one warm-up each, `repeats` turns each, stops all. Who fails is out; the others go on.

    Args:
        contenders: with different names.
        request: of every step; see rank.py.
        repeats: turns; fewer, but at least `least_repeats`, when the deadline comes first.
        deadline_s: for all together.
        least_repeats: with fewer turns by the deadline, a contender has failed.
    """
    end = time.monotonic() + deadline_s
    figures = {contender.name: Figures() for contender in contenders}
    calls = request.get("calls", 1)
    running = list(contenders)
    try:
        for contender in contenders:
            _attempt(contender, running, figures, lambda one=contender: one.start(min(60.0, end - time.monotonic())))
        for turn in range(repeats + 1):
            if time.monotonic() > end and turn > least_repeats:
                break
            for contender in list(running):
                left_s = max(1.0, end - time.monotonic())
                step = _attempt(contender, running, figures, lambda one=contender, s=left_s: one.step(request, s))
                if step is not None and turn > 0:
                    mine = figures[contender.name]
                    mine.seconds.append(step.seconds / calls)
                    mine.cpu_s.append(step.cpu_s / calls)
                    mine.steps.append(step)
    finally:
        for contender in contenders:
            contender.stop()
    return figures


def _attempt(contender: Contender, running: list[Contender], figures: dict[str, Figures], action: Any) -> Any:
    try:
        return action()
    except (ContenderError, OSError) as error:
        figures[contender.name].failure = str(error)
        running.remove(contender)
        contender.stop()
        return None
