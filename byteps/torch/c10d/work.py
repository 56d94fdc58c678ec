"""torch's Work of a collective."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import Work
from torch.futures import Future

from byteps.errors import TimeoutError
from byteps.torch.c10d.progress import Progress
from byteps.torch.c10d.tensor_list import tensor_list

__all__ = ["CollectiveWork", "Group"]

Tensor = torch.Tensor


class Group(Protocol):
    """What a collective needs of its group."""

    limit_s: float  # default limit of `wait`

    def missing(self, number: int) -> str:
        """Returns a sentence about the missing ranks of a collective, for the error at that limit."""
        ...


class CollectiveWork(Work):
    """A collective in flight. Any thread may call the methods, any number of times.

    Python's garbage collector looks at all objects that wait, again and again: with many collectives
    in flight that takes longer than all else. So a collective has few objects here and in `Progress`.
    """

    __slots__ = ("_devices", "_future", "_given_s", "_group", "_lock", "_outputs", "_progress")

    def __init__(
        self, progress: Progress, outputs: Any, devices: Collection[torch.device], given_s: float, group: Group
    ) -> None:
        """See `Collective.work`.

        Args:
            progress: of the collective.
            outputs: the result, in the form that torch's future has.
            devices: of the outputs, except the CPU.
            given_s: limit of `wait` that the call has given; 0 or less: that of the group.
            group: of the collective.
        """
        super().__init__()
        self._progress = progress
        self._outputs = outputs
        self._devices = devices
        self._given_s = given_s
        self._group = group
        self._lock = threading.Lock()
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Blocks until the outputs are there. `timeout` of 0 or less: the group's timeout.

        For tensors on a device it blocks until the copies back are enqueued; what the calling
        thread then gives its stream comes after them.

        Raises:
            TimeoutError: the timeout is over; the collective stays in flight.
            BytePSError: the collective has failed, for example by a PeerLostError.
        """
        if not self._progress.completed:
            given_s = timeout.total_seconds()
            try:
                self._progress.wait(time.monotonic() + (given_s if given_s > 0 else self._limit_s()))
            except TimeoutError as error:
                if given_s > 0:
                    raise
                raise TimeoutError(f"{error}; {self._group.missing(self._progress.number)}") from None
        self._progress.raise_error()
        self._progress.order()
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
        """Waits, and returns the outputs."""
        self.wait()
        return self._outputs

    def get_future(self) -> Future[Any]:
        """Returns a future of the outputs. In C++ (DDP) its error is a RuntimeError."""
        with self._lock:
            future, is_new = self._future, self._future is None
            if future is None:
                # C++ sees an exception of a callback as the future's error, but not one of
                # `Future.set_exception`.
                start: Future[None] = Future(devices=list(self._devices))
                future = self._future = start.then(self._outcome)
        if is_new:
            self._progress.add_done_callback(lambda: self._set_result(start))
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        if self._may_be_fp16_hook() and (caller is None or "get_future" not in caller.f_code.co_names):
            return tensor_list(future, self._outputs)
        return future

    def _set_result(self, future: Future[None]) -> None:
        # The future's users wait for what this thread's streams have been given so far.
        if self._progress.error is None:
            self._progress.order()
        future.set_result(None)

    def _limit_s(self) -> float:
        return self._given_s if self._given_s > 0 else self._group.limit_s

    def _may_be_fp16_hook(self) -> bool:
        """Whether DDP's FP16_COMPRESS hook, which needs a C++ list, may have called `get_future`.

        Python code must not get such a future: its callbacks run in a few threads of PyTorch's, and
        Python's callbacks may wait for each other.
        """
        outputs = self._outputs
        return not self._devices and len(outputs) == 1 and getattr(outputs[0], "dtype", None) is torch.float16

    def _outcome(self, _: Future[None]) -> Any:
        self._progress.raise_error()
        return self._outputs
