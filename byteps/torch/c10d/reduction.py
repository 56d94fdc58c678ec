"""The most frequent collective: one tensor in host memory, reduced in place."""

from __future__ import annotations

from byteps.errors import BytePSError, TimeoutError
from byteps.handles import Handle
from byteps.ops import Buffer, ReduceOp, push_pull_buffer
from byteps.runtime import Job
from byteps.torch.c10d.progress import Explain, Progress

__all__ = ["Reduction"]


class Reduction:
    """What `Collective` is to all others, without the work that only they need.

    That decides over the latency of small tensors: after each wait the processor has to fetch the
    code anew. For the same reason a call that waits at once makes no `Progress`.
    """

    __slots__ = ("_explain", "_failure", "_handle", "_memory", "_op", "_progress", "number")

    def __init__(self, memory: Buffer, op: ReduceOp, explain: Explain) -> None:
        """`memory`: of the tensor, which must not change before the collective is done."""
        self.number = 0
        self._memory = memory
        self._op = op
        self._explain = explain
        self._handle: Handle | None = None
        self._failure: BytePSError | None = None
        self._progress: Progress | None = None

    def make_progress(self) -> Progress:
        """Returns a new Progress. To be called before `launch`, or when that has returned."""
        progress = self._progress = Progress(self._explain)
        progress.number = self.number
        if self._handle is not None:
            progress.begin((self._handle,))
        return progress

    def wait(self, limit_s: float) -> bool:
        """Whether the collective succeeds within the limit. To be called when `launch` has returned."""
        assert self._handle is not None
        try:
            return self._handle.wait(limit_s) is None
        except TimeoutError:
            return False

    def launch(self, job: Job, prefix: str) -> None:
        """See `Collective.launch`."""
        in_flight = job.in_flight
        number = in_flight.next_number(prefix)
        name = in_flight.automatic_name(prefix)
        try:
            self._handle = push_pull_buffer(self._memory, self._memory, name, self._op, 0, _nothing, job, number)
        except BytePSError as error:
            self._failure = self._explain(error)

    def begin(self) -> None:
        """See `Collective.begin`."""
        if self._failure is not None:
            self.fail(self._failure)
            raise self._failure
        if self._progress is not None:
            assert self._handle is not None
            self._progress.number = self.number
            self._progress.begin((self._handle,))

    def fail(self, error: Exception) -> None:
        """Ends a collective that was not launched."""
        if self._progress is not None:
            self._progress.fail(error)


def _nothing() -> None:
    """Does nothing: the result is in the tensor's memory."""
