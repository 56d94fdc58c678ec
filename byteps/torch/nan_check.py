"""Finds gradients with NaN or infinities before a step uses them."""

from __future__ import annotations

import torch

from byteps.errors import NotFiniteError
from byteps.objects import broadcast_object
from byteps.ops import ReduceOp
from byteps.runtime import current_job
from byteps.torch.bucket import Bucket
from byteps.torch.start import start_push_pull, synchronize

__all__ = ["NanCheck", "name_of_report"]

SHOWN = 5  # number of names that an error shows for each rank


class NanCheck:
    """Checks this rank's gradients when they are sent, and reports those of all ranks."""

    def __init__(self) -> None:
        self._suspects: list[str] = []

    def inspect(self, bucket: Bucket) -> None:
        for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
            grad = parameter.grad
            if grad is None:
                continue
            values = grad._values() if grad.is_sparse else grad
            if not values.isfinite().all():
                self._suspects.append(gradient.name)

    def forget(self) -> None:
        """Drops what `inspect` has found."""
        self._suspects.clear()

    def report(self, prefix: str, step: int) -> None:
        """Exchanges what `inspect` has found in this step. All ranks call it at once.

        Raises:
            NotFiniteError: on all ranks, with the names of gradients and their ranks.
        """
        suspects, self._suspects = self._suspects, []
        job = current_job()
        counts = torch.zeros(job.size, dtype=torch.int32)
        counts[job.rank] = len(suspects)
        synchronize(start_push_pull(counts, ReduceOp.Max, name_of_report(prefix), 0, in_place=True, step=step))
        found = []
        for rank, count in enumerate(counts.tolist()):
            if count:
                names = broadcast_object(suspects[:SHOWN], rank, f"{prefix}not_finite.names")
                more = f" and {count - SHOWN} more" if count > SHOWN else ""
                found.append(f"{', '.join(map(repr, names))}{more} on rank {rank}")
        if found:
            raise NotFiniteError(
                f"gradients have NaN or infinite elements: {'; '.join(found)}. No step was made. Look at the loss and "
                "the learning rate there; torch.autograd.set_detect_anomaly(True) names the operation"
            )


def name_of_report(prefix: str) -> str:
    """Returns the name of the push_pull of `report`."""
    return f"{prefix}not_finite"
