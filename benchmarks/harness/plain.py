"""Plain loops: what a contender's library needs in a program of a few lines, without the harness.

The harness must not make a contender slow. So each contender with a plain program is compared with
that program, in the same network, while no other contender lives.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.contender import Contender, ContenderError, Started, kill

NEAR = 1.2  # times its own plain loop: a contender within it is measured fairly
_PAUSE_S = 0.1


def plain_loop_s(contender: Contender, request: Mapping[str, Any], turns: int, deadline_s: float) -> list[float]:
    """Runs the contender's plain loop to its end. Returns the seconds of a call in each turn.

    Raises:
        ContenderError: it has failed or is late; the message ends with what it wrote.
    """
    assert contender.spawn_plain is not None
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output"
        with log.open("wb") as output:
            started = contender.spawn_plain({"calls": 1, **request}, turns, output)
            try:
                reason = _await_ranks(started, time.monotonic() + deadline_s)
            finally:
                kill(started.processes)
        written = log.read_text(errors="replace")
    seconds = [float(line) for line in written.splitlines() if _is_number(line)]
    if reason or len(seconds) != turns:
        reason = reason or f"expected {turns} lines with a number, got {len(seconds)}"
        raise ContenderError(f"{contender.name}, plain loop: {reason}\n{written[-2000:]}".rstrip())
    return seconds


def over_plain(median_s: float, loops: list[list[float]]) -> float:
    """Returns a contender's time over the best median of its plain loops."""
    return median_s / min(statistics.median(loop) for loop in loops)


def _await_ranks(started: Started, end: float) -> str | None:
    """Waits for the end of all processes but servers. Returns a reason if that is no success."""
    ranks = [process for process in started.processes if process not in started.counted]
    while any(process.poll() is None for process in ranks):
        if dead := next((process for process in started.processes if process.poll()), None):
            return f"a process ended with {dead.returncode}"
        if time.monotonic() > end:
            return "timed out"
        time.sleep(_PAUSE_S)
    failed = next((process.returncode for process in ranks if process.returncode), None)
    return None if failed is None else f"a process ended with {failed}"


def _is_number(line: str) -> bool:
    try:
        float(line)
    except ValueError:
        return False
    return True
