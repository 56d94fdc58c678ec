"""The most frequent collective: one tensor in host memory, reduced in place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from byteps.errors import BytePSError, TimeoutError
from byteps.handles import Handle, InFlight
from byteps.ops import Buffer, ReduceOp, push_pull_buffer
from byteps.runtime import Job
from byteps.torch.c10d.progress import Explain, Progress

__all__ = ["BlockingReduction", "Reduction"]


class Reduction:
    """What `Collective` is to all others, without the work that only they need.

    That decides over the latency of small tensors: after each wait the processor has to fetch the
    code anew.
    """

    __slots__ = ("_failure", "_handle", "_memory", "_op", "number", "progress")

    def __init__(self, memory: Buffer, op: ReduceOp, explain: Explain) -> None:
        """`memory`: of the tensor, which must not change before the collective is done."""
        self.number = 0
        self.progress = Progress(explain)
        self._memory = memory
        self._op = op
        self._handle: Handle | None = None
        self._failure: BytePSError | None = None

    def launch(self, job: Job, prefix: str) -> None:
        """See `Collective.launch`."""
        in_flight = job.in_flight
        number = in_flight.names.next_number(prefix)
        name = in_flight.automatic_name(prefix)
        try:
            self._handle = push_pull_buffer(self._memory, self._memory, name, self._op, 0, _nothing, job, number)
        except BytePSError as error:
            self._failure = error

    def begin(self) -> None:
        """See `Collective.begin`."""
        if self._failure is not None:
            error = self.progress.explain(self._failure)
            self.fail(error)
            raise error
        assert self._handle is not None
        self.progress.number = self.number
        self.progress.begin((self._handle,))

    def fail(self, error: Exception) -> None:
        """Ends a collective that was not launched."""
        self.progress.fail(error)


class BlockingReduction:
    """A reduction in which a thread waits, for other threads that wait for it, too (`Awaited`)."""

    error: Exception | None = None  # the thread that waits raises it

    def __init__(self, in_flight: InFlight, name: str) -> None:
        """`name`: the reserved name of its push_pull."""
        self._in_flight = in_flight
        self._name = name
        self._ended = threading.Event()
        self._callbacks: list[Callable[[], object]] = []
        in_flight.names.on_release(name, self._left)

    def poll(self) -> bool:
        """Whether the reduction has ended."""
        return self._ended.is_set()

    def is_completed(self) -> bool:
        """Whether the reduction has ended."""
        return self._ended.is_set()

    def wait(self, deadline_s: float) -> None:
        """Blocks until the reduction ends, or raises TimeoutError at the deadline."""
        if not self._ended.wait(max(0.0, deadline_s - time.monotonic())):
            raise TimeoutError(f"waiting for '{self._name}', an all_reduce in which another thread waits")

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the reduction ends, or at once if it has ended."""
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
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


def _nothing() -> None:
    """Does nothing: the result is in the tensor's memory."""
