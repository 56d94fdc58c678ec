"""A collective in which a thread waits without a Work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from byteps.errors import TimeoutError
from byteps.in_flight import InFlight

__all__ = ["BlockingCall"]


class BlockingCall:
    """A collective in which a thread waits, for other threads that wait for it, too (`Awaited`)."""

    error: Exception | None = None  # the thread that waits raises it

    def __init__(self, in_flight: InFlight, name: str) -> None:
        """`name`: the reserved name of its push_pull."""
        self._in_flight = in_flight
        self._name = name
        self._ended = threading.Event()
        self._lock = threading.RLock()  # guards _callbacks
        self._callbacks: list[Callable[[], object]] = []
        in_flight.names.on_release(name, self._left)

    def poll(self) -> bool:
        """Whether the collective has ended."""
        return self._ended.is_set()

    def is_completed(self) -> bool:
        """Whether the collective has ended."""
        return self._ended.is_set()

    def wait(self, deadline_s: float) -> None:
        """Blocks until the collective ends, or raises TimeoutError at the deadline."""
        if not self._ended.wait(max(0.0, deadline_s - time.monotonic())):
            raise TimeoutError(f"waiting for '{self._name}', a collective in which another thread waits")

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the collective ends, or at once if it has ended."""
        with self._lock:
            self._callbacks.append(callback)
        if self._ended.is_set():
            self._call_back()

    def _left(self) -> None:
        """The thread does not wait any more."""
        handle = self._in_flight.handle_of(self._name)
        if handle is None:
            self._end()
        else:
            handle.add_done_callback(self._end)

    def _end(self) -> None:
        self._ended.set()
        self._call_back()

    def _call_back(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
