"""push_pull and broadcast of NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np

from byteps.buffer import DTYPE_CODES, Buffer
from byteps.ops import (
    Handle,
    ReduceOp,
    broadcast_buffer,
    one_call,
    push_pull_buffer,
    resolve_op,
    synchronize,
    unsupported_dtype,
)

__all__ = ["broadcast", "broadcast_arrays", "push_pull", "push_pull_async", "sum_of_bits"]

Array = np.ndarray[Any, Any]


def push_pull(
    array: Array, average: bool = True, name: str | None = None, *, priority: int = 0, op: ReduceOp | None = None
) -> Array:
    """Returns the average of all ranks' arrays, or their reduction by `op`, as a new array. Blocks.

    Args:
        array: of the same shape and dtype on all ranks; not changed.
        average: False means op=Sum.
        name: the same on all ranks for arrays that belong together. Without names all ranks must
            make their calls in the same order.
        priority: larger ones go first.
        op: Average, Sum, Min, Max or Product; overrides `average`.
    """
    return cast(Array, synchronize(push_pull_async(array, average, name, priority=priority, op=op)))


def push_pull_async(
    array: Array, average: bool = True, name: str | None = None, *, priority: int = 0, op: ReduceOp | None = None
) -> Handle:
    """Starts `push_pull`.

    `array` must not change until `synchronize`, which returns the new array.
    """
    with one_call(name) as known:
        source = np.asarray(array, order="C")
        target = np.empty_like(source)
        return push_pull_buffer(
            _buffer(source), _buffer(target), known, resolve_op(average, op), priority, finish=lambda: target
        )


def broadcast(array: Array, root_rank: int, name: str | None = None) -> Array:
    """Returns rank `root_rank`'s array as a new array. Blocks.

    All ranks pass an array of the same shape and dtype.
    """
    with one_call(name) as known:
        target = np.array(array, order="C")
        handle = broadcast_buffer(_buffer(target), root_rank, known, finish=lambda: target)
    return cast(Array, synchronize(handle))


def broadcast_arrays(arrays: Sequence[Array], root_rank: int, names: Sequence[str]) -> list[Array]:
    """Returns rank `root_rank`'s arrays as new arrays, of any dtype without objects. Blocks."""
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
    """Returns the sum of the array's bits as integers: a hash that is as fast as memory."""
    octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    word = next(size for size in (8, 4, 2, 1) if octets.size % size == 0)
    return int(octets.view(f"u{word}").sum(dtype=np.uint64))


@lru_cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns the name of a dtype that can be summed. NumPy composes it anew at each use."""
    if dtype.name not in DTYPE_CODES or not dtype.isnative:
        raise unsupported_dtype(dtype, "in the machine's byte order: convert it with array.astype()")
    return str(dtype.name)


def _buffer(array: Array) -> Buffer:
    return Buffer(array.ctypes.data, array.nbytes, _dtype_name(array.dtype), array, array.shape)
