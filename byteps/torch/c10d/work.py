"""What a collective gives back: torch's Work."""

from __future__ import annotations

import inspect
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
from byteps.torch.c10d.tensor_list import tensor_list

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
            future, is_new = self._future, self._future is None
            if future is None:
                # Only an exception in a callback becomes an error of a future for C++; `Future.set_exception` does not.
                start: Future[None] = Future(devices=list(self._devices))
                future = self._future = start.then(self._outcome)
        if is_new:
            self._progress.add_done_callback(lambda: start.set_result(None))
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        if self._may_be_fp16_hook() and (caller is None or "get_future" not in caller.f_code.co_names):
            return tensor_list(future, self._outputs)
        return future

    def _may_be_fp16_hook(self) -> bool:
        """Whether DDP's FP16_COMPRESS, which is C++, may have called this: no other code asks for C++'s own list.

        Only C++ is given one, that is, a call that the frame of Python below does not make: callbacks of such a future
        run on threads of PyTorch's which are few, and Python's callbacks may wait for each other.
        """
        outputs = self._outputs
        return not self._devices and len(outputs) == 1 and getattr(outputs[0], "dtype", None) is torch.float16

    def _outcome(self, _: Future[None]) -> Any:
        self._progress.raise_error()
        return self._outputs
