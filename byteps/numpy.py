"""push_pull and broadcast of NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from byteps.errors import InvalidArgumentError
from byteps.ops import (
    DTYPE_CODES,
    Buffer,
    Handle,
    ReduceOp,
    broadcast_buffer,
    one_call,
    push_pull_buffer,
    resolve_op,
    synchronize,
)

__all__ = ["broadcast", "broadcast_arrays", "push_pull", "push_pull_async", "sum_of_bits"]

Array = np.ndarray[Any, Any]


def push_pull(
    array: Array, average: bool = True, name: str | None = None, *, priority: int = 0, op: ReduceOp | None = None
) -> Array:
    """The average (or what `op` says) of the arrays that all ranks pass, as a new array.

    Args:
        array: of the same shape and dtype on all ranks; not changed.
        average: False means op=Sum.
        name: the same on all ranks for arrays that belong together; without names all ranks must make their calls in
            the same order.
        priority: larger ones go first.
        op: Average, Sum, Min, Max or Product; takes precedence over `average`.
    """
    return cast(Array, synchronize(push_pull_async(array, average, name, priority=priority, op=op)))


def push_pull_async(
    array: Array, average: bool = True, name: str | None = None, *, priority: int = 0, op: ReduceOp | None = None
) -> Handle:
    """Starts `push_pull`; `array` must not change until `synchronize`, which returns the new array."""
    with one_call(name) as known:
        source = np.asarray(array, order="C")
        target = np.empty_like(source)
        return push_pull_buffer(
            _buffer(source), _buffer(target), known, resolve_op(average, op), priority, finish=lambda: target
        )


def broadcast(array: Array, root_rank: int, name: str | None = None) -> Array:
    """Rank `root_rank`'s array, as a new array; the others pass one of the same shape and dtype."""
    with one_call(name) as known:
        target = np.array(array, order="C")
        handle = broadcast_buffer(_buffer(target), root_rank, known, finish=lambda: target)
    return cast(Array, synchronize(handle))


def broadcast_arrays(arrays: Sequence[Array], root_rank: int, names: Sequence[str]) -> list[Array]:
    """Rank `root_rank`'s arrays, as new arrays; all at once. Of any dtype without objects, which travel as bytes."""
    targets = [np.array(array, order="C") for array in arrays]
    handles = [
        broadcast_buffer(
            Buffer(target.ctypes.data, target.nbytes, "uint8", target, (*target.shape, target.itemsize)),
            root_rank,
            name,
            lambda: None,
        )
        for target, name in zip(targets, names, strict=True)
    ]
    for handle in handles:
        synchronize(handle)
    return targets


def sum_of_bits(array: Array) -> int:
    """The sum of the array's bits as whole numbers, as fast as memory: other for most arrays that are not the same."""
    octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    word = next(size for size in (8, 4, 2, 1) if octets.size % size == 0)
    return int(octets.view(f"u{word}").sum(dtype=np.uint64))


def _buffer(array: Array) -> Buffer:
    if array.dtype.name not in DTYPE_CODES or not array.dtype.isnative:
        raise InvalidArgumentError(
            f"dtype {array.dtype} is not supported: expected {', '.join(DTYPE_CODES)} in the machine's byte order; "
            "convert it with array.astype()"
        )
    return Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array, array.shape)
