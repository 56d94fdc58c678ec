"""push_pull and broadcast of raw memory, for the adapters of the frameworks."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from byteps import _core
from byteps.errors import InvalidArgumentError
from byteps.handles import Handle
from byteps.runtime import current_job

__all__ = [
    "Average",
    "Buffer",
    "Handle",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "broadcast_buffer",
    "check_root",
    "declare_buffer",
    "poll",
    "push_pull_buffer",
    "resolve_op",
    "synchronize",
]

DTYPE_CODES = _core.DTYPE_CODES
BROADCAST = _core.OP_CODES["broadcast"]


class ReduceOp(Enum):
    """What push_pull makes of the ranks' tensors, element by element. The value is the core's code."""

    Average = _core.OP_CODES["average"]
    Sum = _core.OP_CODES["sum"]
    Min = _core.OP_CODES["min"]
    Max = _core.OP_CODES["max"]
    Product = _core.OP_CODES["product"]


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product


class Buffer(NamedTuple):
    """Memory of a tensor in row-major order, or in another order that is the same on all ranks."""

    ptr: int
    nbytes: int
    dtype: str  # a key of `_core.DTYPE_CODES`
    owner: object  # keeps the memory alive


def resolve_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """The operation that BytePS's `average` and the newer `op` ask for together; Average if neither says."""
    if op is None:
        return ReduceOp.Sum if average is False else ReduceOp.Average
    if not isinstance(op, ReduceOp):
        raise InvalidArgumentError(f"op is {op!r}: expected Average, Sum, Min, Max or Product of this package")
    return op


def check_root(root_rank: int) -> None:
    """Raises InvalidArgumentError unless the job has that rank."""
    size = current_job().size
    if not 0 <= root_rank < size:
        raise InvalidArgumentError(f"root_rank is {root_rank}: expected 0 to {size - 1}")


def push_pull_buffer(
    source: Buffer, target: Buffer, name: str | None, op: ReduceOp, priority: int, finish: Callable[[], object]
) -> Handle:
    """Starts reducing `source` over all ranks into `target`.

    Args:
        source: this rank's part; unchanged until the handle is done.
        target: for the result; may be `source`.
        op: the operation.
        name: the same on all ranks for tensors that belong together. None: `InFlight.automatic_name`.
        priority: larger ones go first.
        finish: called by `synchronize` when `target` is filled; its result is synchronize's.

    Raises:
        InvalidArgumentError: a tensor of this name is in flight.
    """
    return _start(source, target, name, op.value, 0, priority, finish)


def broadcast_buffer(buffer: Buffer, root_rank: int, name: str | None, finish: Callable[[], object]) -> Handle:
    """Starts replacing `buffer` by that of rank `root_rank`. See `push_pull_buffer`."""
    check_root(root_rank)
    return _start(buffer, buffer, name, BROADCAST, root_rank, 0, finish)


def declare_buffer(name: str, dtype: str, nbytes: int) -> None:
    """Tells the job of a tensor ahead of its first push_pull, which is then faster. Does not wait."""
    current_job().node.declare(name, DTYPE_CODES[dtype], nbytes)


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return at once."""
    return _checked(handle).poll()


def synchronize(handle: Handle) -> object:
    """Waits for a push_pull or broadcast and returns its result; frees the handle.

    Raises:
        InvalidArgumentError: the handle was synchronized before.
        BytePSError: what the push_pull failed of.
    """
    return _checked(handle).synchronize()


def _start(
    source: Buffer, target: Buffer, name: str | None, op: int, root: int, priority: int, finish: Callable[[], object]
) -> Handle:
    job = current_job()
    if name is None:
        name = job.in_flight.automatic_name(f"{target.dtype}.{target.nbytes}.{op}")
    elif not isinstance(name, str):
        raise InvalidArgumentError(f"name is {name!r}: expected a string")
    if target.nbytes == 0:
        return Handle.completed(name, finish)
    return job.in_flight.start(
        name,
        source.ptr,
        target.ptr,
        target.nbytes,
        DTYPE_CODES[target.dtype],
        op,
        root,
        priority,
        (source.owner, target.owner),
        finish,
    )


def _checked(handle: Handle) -> Handle:
    if not isinstance(handle, Handle):
        raise InvalidArgumentError(f"{handle!r} is not a handle: expected what an _async function returned")
    return handle
