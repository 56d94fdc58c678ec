"""push_pull and broadcast of MXNet's arrays, in its engine.

All functions return at once, and the engine does the work later. Functions that read an array, such
as `wait_to_read` and `asnumpy`, wait for it and raise its error.

Common arguments:
    tensor: an NDArray of the same shape and dtype on all ranks, on any device. name: the same on
    all ranks for arrays that belong together. Without names all ranks must make their
        calls in the same order.
    priority: larger ones go first.
    op: Average, Sum, Min, Max or Product; overrides `is_average`.
    compression: one of `Compression`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import mxnet as mx

from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.mxnet.compression import AnyCompressor, Compression
from byteps.mxnet.native import one_call, push
from byteps.mxnet.tensor import Staged, stage
from byteps.ops import BROADCAST, ReduceOp, check_name, check_priority, check_root, resolve_op
from byteps.runtime import current_job, init, local_rank, local_size, rank, resume, shutdown, size, suspend  # noqa: F401

__all__ = ["broadcast", "broadcast_", "byteps_declare_tensor", "byteps_push_pull", "push_pull", "reduce_staged"]

NDArray: TypeAlias = mx.nd.NDArray


def byteps_declare_tensor(name: str, **kwargs: Any) -> None:
    """Does nothing; accepted for BytePS's scripts.

    Raises:
        UnsupportedError: parameters of a compressor are given.
    """
    check_name(name)
    if kwargs:
        raise UnsupportedError(
            f"byteps_declare_tensor('{name}'): {', '.join(kwargs)}: this version compresses by casting only: pass "
            "compression=Compression.fp16 to push_pull"
        )


def byteps_push_pull(
    tensor: NDArray,
    version: int = 0,
    priority: int = 0,
    name: str | None = None,
    is_average: bool = True,
    *,
    op: ReduceOp | None = None,
    compression: AnyCompressor = Compression.none,
) -> None:
    """Replaces `tensor` by the average of all ranks' tensors, or their reduction by `op`.

    `is_average=False` means op=Sum. `version` is accepted for BytePS's scripts, and unused.
    """
    what = f"push_pull of '{name}'" if name else "push_pull"
    with one_call(name) as known:
        reduce_staged(stage(tensor, what), resolve_op(is_average, op), known, priority, compression)


def reduce_staged(
    staged: Staged,
    op: ReduceOp,
    name: str,
    priority: int,
    compression: AnyCompressor = Compression.none,
    step: int = 0,
) -> None:
    """`byteps_push_pull` of a staged array. To be called within `one_call`; step 0: no step."""
    compressed, context = compression.compress(staged.array)
    is_same = compressed is staged.array
    sent = staged if is_same else stage(compressed, "push_pull")
    _push_in_place(sent, op.value, name, priority, step=step)
    if not is_same:
        compression.decompress(compressed, context).copyto(staged.array)
    staged.copy_back()


def push_pull(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    *,
    op: ReduceOp | None = None,
    compression: AnyCompressor = Compression.none,
) -> NDArray:
    """Returns the result of `byteps_push_pull` as a new array."""
    with one_call(name) as known:
        reduced = _copy_of(tensor, "push_pull")
        byteps_push_pull(reduced, 0, priority, known, op=resolve_op(average, op), compression=compression)
    return reduced


def broadcast_(tensor: NDArray, root_rank: int, name: str | None = None, priority: int = 0) -> None:
    """Replaces `tensor`, of any dtype, by rank `root_rank`'s."""
    what = f"broadcast of '{name}'" if name else "broadcast"
    with one_call(name) as known:
        check_root(root_rank)
        staged = stage(tensor, what, any_dtype=True)
        _push_in_place(staged, BROADCAST, known, priority, root=root_rank)
    staged.copy_back()


def broadcast(tensor: NDArray, root_rank: int, name: str | None = None, priority: int = 0) -> NDArray:
    """Returns rank `root_rank`'s tensor, of any dtype, as a new array."""
    with one_call(name) as known:
        copy = _copy_of(tensor, "broadcast")
        broadcast_(copy, root_rank, known, priority)
    return copy


def _push_in_place(staged: Staged, op: int, name: str, priority: int, *, root: int = 0, step: int = 0) -> None:
    check_priority(name, priority)
    push(staged.array, staged.array, staged.nbytes, name, staged.dtype, op, root=root, priority=priority, step=step)


def _copy_of(tensor: NDArray, what: str) -> NDArray:
    if not isinstance(tensor, mx.nd.NDArray):
        raise InvalidArgumentError(f"{what}: expected an NDArray, got {type(tensor).__name__}")
    return tensor.copy()
