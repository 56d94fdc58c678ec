"""The most frequent collective: one tensor in host memory, reduced in place."""

from __future__ import annotations

from byteps.errors import BytePSError
from byteps.handles import Handle
from byteps.ops import Buffer, ReduceOp, push_pull_buffer
from byteps.runtime import Job
from byteps.torch.c10d.progress import Explain, Progress

__all__ = ["Reduction"]


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


def _nothing() -> None:
    """Does nothing: the result is in the tensor's memory."""
