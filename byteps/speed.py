"""Measures the rate of push_pull for `get_pushpull_speed`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["SpeedMeter"]

INTERVAL_S = 10.0
MAX_SAMPLES = 1024
NO_SAMPLE = (0, -5.0)  # the same as in BytePS


class SpeedMeter:
    """Samples the rate of completed tensor bytes, at most every `INTERVAL_S`."""

    def __init__(self, total_bytes: Callable[[], float], clock: Callable[[], float] = time.time) -> None:
        """Args: `total_bytes` returns the number of bytes completed so far."""
        self._total_bytes = total_bytes
        self._clock = clock
        self._samples: deque[tuple[int, float]] = deque(maxlen=MAX_SAMPLES)
        self._interval_start = clock()
        self._bytes_at_start = 0.0

    def tick(self) -> None:
        """Takes a sample if the interval is over. Call it after each completed push_pull."""
        now = self._clock()
        elapsed = now - self._interval_start
        if elapsed >= INTERVAL_S:
            total = self._total_bytes()
            self._samples.append((int(now * 1000), (total - self._bytes_at_start) / 1e6 / elapsed))
            self._interval_start = now
            self._bytes_at_start = total

    def pop_oldest(self) -> tuple[int, float]:
        """Removes the oldest sample and returns it: (milliseconds since the epoch, MB/s).

        Returns (0, -5.0) if there is none.
        """
        self.tick()
        return self._samples.popleft() if self._samples else NO_SAMPLE
