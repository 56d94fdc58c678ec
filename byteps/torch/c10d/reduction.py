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

    It takes half the time, which decides over the latency of small tensors: after each wait the
    processor has to fetch this code anew.
    """

    __slots__ = ("_explain", "_handle", "_memory", "_op", "progress")

    def __init__(self, memory: Buffer, op: ReduceOp, explain: Explain) -> None:
        """`memory`: of the tensor, which must not change before the collective is done."""
        self._memory = memory
        self._op = op
        self._explain = explain
        self._handle: Handle | BytePSError | None = None
        self.progress = Progress(explain)

    def launch(self, job: Job, prefix: str) -> None:
        """See `Collective.launch`."""
        in_flight = job.in_flight
        number = in_flight.next_number(prefix)
        name = in_flight.automatic_name(prefix)
        try:
            self._handle = push_pull_buffer(self._memory, self._memory, name, self._op, 0, _nothing, job, number)
        except BytePSError as error:
            self._handle = self._explain(error)

    def begin(self) -> None:
        """See `Collective.begin`."""
        handle = self._handle
        assert handle is not None
        if isinstance(handle, BytePSError):
            self.progress.fail(handle)
            raise handle
        self.progress.begin((handle,))

    def fail(self, error: Exception) -> None:
        """Ends a collective that was not launched."""
        self.progress.fail(error)


def _nothing() -> None:
    """Does nothing: the result is in the tensor's memory."""
