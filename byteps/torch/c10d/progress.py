"""The progress of one collective, from the call to its completion."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from byteps.errors import BytePSError, TimeoutError
from byteps.handles import Handle

__all__ = ["Awaited", "Explain", "Progress"]

Explain = Callable[[BytePSError], BytePSError]
Callback = Callable[[], object]


class Awaited(Protocol):
    """Something that a collective may have to wait for; the methods are those of `Progress`."""

    error: Exception | None

    def poll(self) -> bool: ...
    def is_completed(self) -> bool: ...
    def wait(self, deadline_s: float) -> None: ...
    def add_done_callback(self, callback: Callback) -> None: ...


class Progress:
    """The push_pulls of one collective, and what follows them. Any thread may call the methods.

    The first thread that sees the last push_pull done completes the collective: one that waits, or,
    if there is memory to copy back or a callback to call, a callback thread of the job.
    """

    __slots__ = (
        "_begins",
        "_begun",
        "_callbacks",
        "_copy_back",
        "_earlier",
        "_handles",
        "_lock",
        "_on_devices",
        "_watched",
        "completed",
        "error",
        "explain",
        "number",
    )

    def __init__(self, explain: Explain, earlier: Sequence[Awaited] = ()) -> None:
        """Makes the progress of a collective whose push_pulls are not started.

        Args:
            explain: adds what the job does not know to its errors.
            earlier: collectives that must be complete before this one is.
        """
        self.completed = False
        self.error: Exception | None = None
        self.number = 0  # counts the collectives of the group's job from 1; 0: it uses no job
        self._copy_back: Callback | None = None
        self.explain = explain
        self._earlier: Sequence[Awaited] = earlier
        self._lock = threading.Lock()
        self._begun = False
        self._begins: threading.Event | None = None  # of threads that wait for `begin` or `fail`
        self._handles: Sequence[Handle] = ()
        self._on_devices: Sequence[Handle] = ()
        self._callbacks: tuple[Callback, ...] = ()
        self._watched = False  # a callback thread of the job completes it, also if no thread waits

    def begin(
        self, handles: Sequence[Handle], copy_back: Callback | None = None, on_devices: Sequence[Handle] = ()
    ) -> None:
        """The push_pulls are started.

        Args:
            handles: of the push_pulls.
            copy_back: fills outputs from host copies, if any.
            on_devices: those of `handles` whose tensors are on devices.
        """
        with self._lock:
            self._handles, self._copy_back, self._on_devices = handles, copy_back, on_devices
            watched = self._watched = self._watched or copy_back is not None
            self._note_begin()
        if watched:
            self._complete_when_done()

    def fail(self, error: Exception) -> None:
        """The collective has failed before its push_pulls were started."""
        with self._lock:
            self.error = error
            self._end()
            self._note_begin()
        self._call_back()

    def poll(self) -> bool:
        """Whether `wait` would return at once. Has no side effects."""
        if self.completed:
            return True
        return (
            self._copy_back is None
            and self._begun
            and all(handle.poll() for handle in self._handles)
            and all(progress.poll() for progress in self._earlier)
        )

    def is_completed(self) -> bool:
        """Whether the collective is complete. Completes it if all its push_pulls are done."""
        if not self.completed and self._is_done():
            self._complete()
        return self.completed

    def wait(self, deadline_s: float) -> None:
        """Blocks until the collective ends, or raises TimeoutError at the deadline."""
        if self.completed:
            return
        if not self._begun:
            self._wait_for_begin(deadline_s)
        for handle in self._handles:
            self._wait_for(handle, deadline_s)
        for progress in self._earlier:
            progress.wait(deadline_s)
        self._complete()

    def order(self) -> None:
        """What the calling thread gives its streams from now on comes after the collective.

        To be called when it is complete. Does nothing for tensors in host memory.
        """
        for handle in self._on_devices:
            handle.order()

    def add_done_callback(self, callback: Callback) -> None:
        """Calls `callback` at completion: in a thread of the job, or here if it is over."""
        with self._lock:
            completed, watched = self.completed, self._watched
            if not completed:
                self._callbacks += (callback,)
                self._watched = True
            begun = self._begun
        if completed:
            callback()
        elif begun and not watched:
            self._complete_when_done()

    def raise_error(self) -> None:
        """Raises the error of a collective that has failed."""
        # A copy, because frames of the original would refer to this object.
        if self.error is not None:
            raise type(self.error)(*self.error.args)

    def _is_done(self) -> bool:
        return (
            self._begun
            and all(handle.poll() for handle in self._handles)
            and all(progress.is_completed() for progress in self._earlier)
        )

    def _note_begin(self) -> None:
        self._begun = True
        if self._begins is not None:
            self._begins.set()

    def _wait_for_begin(self, deadline_s: float) -> None:
        with self._lock:
            if self._begun:
                return
            if self._begins is None:
                self._begins = threading.Event()
            begins = self._begins
        if not begins.wait(max(0.0, deadline_s - time.monotonic())):
            raise self.explain(
                TimeoutError("waiting for a collective of a process group whose ranks have not all joined its job yet")
            )

    def _wait_for(self, handle: Handle, deadline_s: float) -> None:
        try:
            handle.wait(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError as error:
            raise self.explain(
                TimeoutError(f"waiting for '{handle.name}': {error}; expected every rank of the group to start it")
            ) from None

    def _complete_when_done(self) -> None:
        parts: list[Handle | Awaited] = [*self._handles, *self._earlier]
        for awaited in parts:
            if not awaited.poll():
                awaited.add_done_callback(self._complete_when_done)
                return
        self._complete()

    def _complete(self) -> None:
        """Called when all push_pulls and earlier collectives are done."""
        with self._lock:
            if self.completed:
                return
            self.error = self._first_error()
            if self.error is None and self._copy_back is not None:
                try:
                    self._copy_back()
                except Exception as error:  # such as out of memory on the device
                    self.error = error
            self._end()
        self._call_back()

    def _first_error(self) -> Exception | None:
        for handle in self._handles:  # a loop, because a generator costs more than the rest
            error = handle.wait()
            if error is not None:
                return self.explain(error)
        for progress in self._earlier:
            progress.is_completed()
            if progress.error is not None:
                return progress.error
        return None

    def _end(self) -> None:
        self._handles, self._copy_back, self._earlier = (), None, ()
        self.completed = True

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()
