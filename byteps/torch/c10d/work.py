"""What a collective gives back: torch's Work over the handles of its push_pulls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

import torch
from torch.distributed import Work
from torch.futures import Future

from byteps.errors import BytePSError, TimeoutError
from byteps.handles import Handle

__all__ = ["Explain", "HandlesWork"]

Tensor = torch.Tensor
Explain = Callable[[BytePSError], BytePSError]


class HandlesWork(Work):
    """A collective under way. All methods may be called from any thread, as often as one likes.

    Whoever sees the last handle done first completes it: the thread in `wait`, or, if there is a future or memory to be
    copied back, the job's thread for callbacks.
    """

    def __init__(
        self,
        handles: Sequence[Handle],
        outputs: list[Tensor],
        copy_back: Callable[[], None] | None,
        devices: Collection[torch.device],
        limit_s: float,
        explain: Explain,
    ) -> None:
        """See `Collective.start`.

        Args:
            handles: of the push_pulls that the collective consists of.
            outputs: the result, in the form that torch's future has.
            copy_back: fills the outputs from the host copies that the push_pulls have filled; None: no copies.
            devices: of the outputs, but for the CPU.
            limit_s: how long `wait` waits unless it is told.
            explain: adds to an error what the job does not know.
        """
        super().__init__()
        self._handles = handles
        self._outputs = outputs
        self._copy_back = copy_back
        self._devices = devices
        self._limit_s = limit_s
        self._explain = explain
        self._lock = threading.Lock()
        self._completed = False
        self._error: Exception | None = None
        self._start: Future[None] | None = None
        self._future: Future[list[Tensor]] | None = None
        if copy_back is not None:
            self._complete_when_done()  # also if nobody ever waits

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Blocks until the outputs are there. `timeout` of 0 or less: the group's.

        Raises:
            TimeoutError: not yet; the collective stays under way.
            BytePSError: what it failed of, such as PeerLostError.
        """
        if not self._completed:
            limit_s = timeout.total_seconds()
            deadline = time.monotonic() + (limit_s if limit_s > 0 else self._limit_s)
            for handle in self._handles:
                self._wait_for(handle, deadline)
            self._complete()
        self._raise_error()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._completed and all(handle.poll() for handle in self._handles):
            self._complete()
        return self._completed

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[Tensor]:
        """The outputs, once they are there. Blocks."""
        self.wait()
        return self._outputs

    def get_future(self) -> Future[list[Tensor]]:
        """A future of the outputs. An error reaches C++ (DDP) too, there as a RuntimeError with the same message."""
        with self._lock:
            if self._future is not None:
                return self._future
            # Only an exception in a callback becomes an error of a future for C++; `Future.set_exception` does not.
            self._start = Future(devices=list(self._devices))
            self._future = self._start.then(self._outcome)
            completed = self._completed
        if completed:
            self._start.set_result(None)
        elif self._copy_back is None:
            self._complete_when_done()
        return self._future

    def _outcome(self, _: Future[None]) -> list[Tensor]:
        self._raise_error()
        return self._outputs

    def _raise_error(self) -> None:
        if self._error is not None:  # a copy: its frames refer to this object
            raise type(self._error)(*self._error.args)

    def _wait_for(self, handle: Handle, deadline: float) -> None:
        try:
            handle.wait(max(0.0, deadline - time.monotonic()))
        except TimeoutError as error:
            raise self._explain(
                TimeoutError(f"waiting for '{handle.name}': {error}; expected every rank of the group to start it")
            ) from None

    def _complete_when_done(self) -> None:
        for handle in self._handles:
            if not handle.poll():
                handle.add_done_callback(self._complete_when_done)
                return
        self._complete()

    def _complete(self) -> None:
        """Once all handles are done."""
        with self._lock:
            if self._completed:
                return
            errors = [error for error in (handle.wait() for handle in self._handles) if error is not None]
            if errors:
                self._error = self._explain(errors[0])
            elif self._copy_back is not None:
                try:
                    self._copy_back()
                except Exception as error:  # such as no memory left on the device
                    self._error = error
            self._handles = ()
            self._completed = True
            start = self._start
        if start is not None:
            start.set_result(None)  # without the lock: runs callbacks of the future's users
