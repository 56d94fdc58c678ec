"""What a collective gives back: torch's Work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work
from torch.futures import Future

from byteps.errors import TimeoutError
from byteps.torch.c10d.progress import Progress

__all__ = ["CollectiveWork"]

Tensor = torch.Tensor


class CollectiveWork(Work):
    """A collective under way. All methods may be called from any thread, as often as one likes."""

    def __init__(
        self,
        progress: Progress,
        outputs: Any,
        devices: Collection[torch.device],
        limit_s: Callable[[], float],
        missing: Callable[[], str],
    ) -> None:
        """See `Collective.start`.

        Args:
            progress: of what is waited for.
            outputs: the result, in the form that torch's future has.
            devices: of the outputs, but for the CPU.
            limit_s: says how long `wait` waits unless it is told.
            missing: says who is waited for in vain after that.
        """
        super().__init__()
        self._progress = progress
        self._outputs = outputs
        self._devices = devices
        self._limit_s = limit_s
        self._missing = missing
        self._lock = threading.Lock()
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Blocks until the outputs are there. `timeout` of 0 or less: the group's.

        Raises:
            TimeoutError: not yet; the collective stays under way.
            BytePSError: what it failed of, such as PeerLostError.
        """
        if not self._progress.completed:
            given_s = timeout.total_seconds()
            try:
                self._progress.wait(time.monotonic() + (given_s if given_s > 0 else self._limit_s()))
            except TimeoutError as error:
                if given_s > 0:
                    raise
                raise TimeoutError(f"{error}; {self._missing()}") from None
        self._progress.raise_error()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._progress.is_completed()

    def is_success(self) -> bool:
        return self.is_completed() and self._progress.error is None

    def exception(self) -> Exception | None:
        return self._progress.error

    def result(self) -> Any:
        """The outputs, once they are there. Blocks."""
        self.wait()
        return self._outputs

    def get_future(self) -> Future[Any]:
        """A future of the outputs. An error reaches C++ (DDP) too, there as a RuntimeError with the same message."""
        with self._lock:
            if self._future is not None:
                return self._future
            # Only an exception in a callback becomes an error of a future for C++; `Future.set_exception` does not.
            start: Future[None] = Future(devices=list(self._devices))
            self._future = start.then(self._outcome)
        self._progress.add_done_callback(lambda: start.set_result(None))
        return self._future

    def _outcome(self, _: Future[None]) -> Any:
        self._progress.raise_error()
        return self._outputs
