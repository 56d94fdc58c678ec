"""Handles of push_pulls, for `poll` and `synchronize`."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from byteps import _core
from byteps.device import Transfer
from byteps.errors import BytePSError

if TYPE_CHECKING:
    from byteps.in_flight import InFlight
    from byteps.nodes import Node

__all__ = ["Handle", "Prepared", "no_result"]


class Handle:
    """The handle of a push_pull, for `poll` and `synchronize`.

    A handle may be dropped: the job keeps the tensors alive while the core uses their memory.
    """

    __slots__ = ("_error", "_finish", "_in_flight", "_keepalive", "_lock", "_number", "_result", "_transfer", "name")

    def __init__(
        self,
        in_flight: InFlight | None,
        name: str,
        keepalive: object,
        finish: Callable[[], object],
        transfer: Transfer | None = None,
    ) -> None:
        self.name = name
        self._lock = threading.Lock()  # held while waiting: no other thread frees the handle
        self._in_flight = in_flight  # None: the core does not use the memory any more
        self._number = -1
        self._keepalive = keepalive
        self._finish: Callable[[], object] | None = finish
        self._result: object = None  # result of `finish`, which is called once
        self._error: BytePSError | None = None
        self._transfer = transfer  # None: the tensors are in host memory

    @classmethod
    def completed(cls, name: str, finish: Callable[[], object]) -> Handle:
        """Returns a handle of an operation that needed no communication."""
        return cls(None, name, None, finish)

    def __repr__(self) -> str:
        state = "synchronized" if self._finish is None else "done" if self._in_flight is None else "in flight"
        return f"<byteps handle of '{self.name}', {state}>"

    def poll(self) -> bool:
        """Whether `synchronize` would return without waiting."""
        in_flight = self._in_flight
        return in_flight is None or in_flight.is_done(self)

    def synchronize(self) -> object:
        """Waits until the push_pull is done, and returns its result or raises its error.

        Further calls return the same result or raise the same error. For tensors on a device it
        waits until the copies back are enqueued; what the calling thread then gives its stream
        comes after them.
        """
        in_flight = self._in_flight
        if in_flight is not None:
            in_flight.wait(self)
        with self._lock:
            if self._error is not None:
                self._finish = None
                # A copy: the raised exception refers to frames, and a cycle would keep tensors
                # alive.
                raise copy.copy(self._error)
            if self._transfer is not None:
                self._transfer.order()
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None
            return self._result

    def wait(self, timeout_s: float | None = None) -> BytePSError | None:
        """Waits until the push_pull is done, and returns its error or None.

        May be called repeatedly. Does not replace `synchronize`, which makes the result.

        Raises:
            TimeoutError: the push_pull is not done after `timeout_s`, and stays in flight.
        """
        in_flight = self._in_flight
        if in_flight is not None:
            in_flight.wait(self, timeout_s)
        return self._error

    @property
    def is_on_device(self) -> bool:
        """Whether the tensors are in the memory of a device."""
        return self._transfer is not None

    def order(self) -> None:
        """What the calling thread gives its stream from now on comes after this push_pull.

        To be called when it is done. Does nothing for tensors in host memory.
        """
        if self._transfer is not None:
            self._transfer.order()

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Has `callback` called once the push_pull is done, with or without an error.

        A thread of the job calls it, or this call itself if the push_pull is done already.
        Callbacks of several handles begin in the order of completion, on several threads, so one
        may wait for another. Exceptions of a callback are logged. A callback must not leave the
        job, since leaving waits for this thread.
        """
        in_flight = self._in_flight
        if in_flight is None or not in_flight.announce(self, callback):
            callback()


def no_result() -> None:
    """Makes the result of a push_pull in place, which nobody asks for."""


class Prepared(Handle):
    """A push_pull of one tensor in place, started again and again; see `InFlight.prepare`.

    It is the handle of the last one, so it must not be given to somebody who keeps handles.
    """

    __slots__ = ("core", "node")

    def __init__(self, node: Node, name: str, core: _core.PreparedPushPull) -> None:
        super().__init__(None, name, None, no_result)
        self.node = node
        self.core = core

    def _begin(self, in_flight: InFlight, keepalive: object) -> None:
        self._number = -1
        self._keepalive = keepalive
        self._finish = no_result
        self._error = self._transfer = None
        self._in_flight = in_flight
