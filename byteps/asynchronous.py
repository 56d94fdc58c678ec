"""Rules of asynchronous training that all adapters share: see docs/async.md."""

from __future__ import annotations

from collections.abc import Callable

from byteps.errors import InvalidArgumentError
from byteps.ops import ReduceOp
from byteps.runtime import current_job

__all__ = ["SKIPPED_UPDATE", "change_divisor", "check_op_of_changes", "describe_mode", "settle_weights"]

# Logged when a rank joins and gets weights that are newer than those of its gradients.
SKIPPED_UPDATE = "other ranks have changed the weights since this rank got them: it skips its first update"


def describe_mode(staleness: float | None) -> str:
    """Returns the mode of training, for comparisons between ranks. None: synchronous."""
    return "training in step" if staleness is None else f"asynchronous training with staleness={staleness}"


def check_op_of_changes(caller: str, op: ReduceOp) -> None:
    """Raises InvalidArgumentError unless changes of weights can be combined by `op`."""
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise InvalidArgumentError(
            f"{caller}: op is {op.name}, but changes of weights can only be added: use Average or Sum"
        )


def change_divisor(op: ReduceOp) -> int:
    """Returns the divisor of a rank's change: the number of ranks for Average, 1 for Sum."""
    return current_job().size if op is ReduceOp.Average else 1


def settle_weights(read: Callable[[], None]) -> None:
    """Gives all ranks the same weights. Blocks until all ranks have called it.

    Args:
        read: replaces this rank's weights by those of the services, and waits for them.
    """
    node = current_job().node
    node.barrier()  # the services have all changes of all ranks
    read()
    node.barrier()  # no rank leaves, with its service, before all ranks have the weights
