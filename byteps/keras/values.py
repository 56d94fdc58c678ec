"""push_pull, broadcast and allgather of values outside graphs, for every backend of Keras."""

from __future__ import annotations

from numbers import Number
from typing import Any

import keras
import numpy as np

from byteps import numpy as arrays
from byteps.errors import InvalidArgumentError
from byteps.objects import broadcast_object
from byteps.ops import ReduceOp, average_or_op, resolve_op
from byteps.runtime import current_job

__all__ = ["allgather", "allreduce", "broadcast", "push_pull"]


def push_pull(value: Any, name: str | None = None, average: bool = True, *, op: ReduceOp | None = None) -> Any:
    """Returns the values of all ranks, averaged or reduced by `op`. Blocks.

    Args:
        value: a number, a NumPy array, a list of numbers, or a tensor or variable of Keras's
            backend; of the same shape and dtype on all ranks. Numbers are summed in float64, or in
            int64 if the result is whole.
        name: the same on all ranks for values that belong together. Without names all ranks must
            make their calls in the same order.
        average: False means op=Sum.
        op: Average, Sum, Min, Max or Product; overrides `average`.

    Returns:
        A number for a number, an array for an array or a list, a tensor for a tensor or variable.

    Raises:
        InvalidArgumentError: `value` is of another kind, or has no value yet, as in tf.function.
    """
    op = resolve_op(average, op)
    array = _array(value, "push_pull")
    array = array.astype(np.uint8) if array.dtype == np.bool_ else array
    if isinstance(value, int | bool) and op is ReduceOp.Average:
        array = array.astype(np.float64)
    return _like(value, arrays.push_pull(array, name=name, op=op))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
) -> Any:
    """`push_pull` under Horovod's name and with its arguments.

    Args:
        value: see `push_pull`; so are name and op.
        name: see `value`.
        average: not together with `op`.
        prescale_factor: factor of every rank's value.
        postscale_factor: factor of the result.
        op: see `value`.
    """
    op = average_or_op(average, op, "allreduce")
    if prescale_factor != 1:
        value = _like(value, _array(value, "allreduce") * prescale_factor)
    reduced = push_pull(value, name, op=op)
    return reduced if postscale_factor == 1 else _like(reduced, _array(reduced, "allreduce") * postscale_factor)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns rank `root_rank`'s value. Blocks.

    All ranks pass a value of the same shape and dtype; see `push_pull`.
    """
    array = _array(value, "broadcast")
    is_bool = array.dtype == np.bool_
    result = arrays.broadcast(array.astype(np.uint8) if is_bool else array, root_rank, name)
    return _like(value, result.astype(np.bool_) if is_bool else result)


def allgather(value: Any, name: str | None = None) -> Any:
    """Returns the values of all ranks, concatenated along the first dimension. Blocks.

    Args:
        value: of one dimension or more, of which the first may differ between ranks; see
            `push_pull`.
        name: needed only if several threads call this at the same time.

    Raises:
        InvalidArgumentError: a value without dimensions. On all ranks: their values differ in dtype
            or in another dimension.
    """
    job = current_job()
    mine = _array(value, "allgather")
    parts = [broadcast_object(mine, rank, f"allgather.{name or ''}") for rank in range(job.size)]
    for rank, part in enumerate(parts):
        if part.ndim == 0 or (part.dtype, part.shape[1:]) != (parts[0].dtype, parts[0].shape[1:]):
            raise InvalidArgumentError(
                f"allgather: rank 0 has {parts[0].dtype} {list(parts[0].shape)}, rank {rank} has {part.dtype} "
                f"{list(part.shape)}: expected one dimension or more, and only the first may differ"
            )
    return _like(value, np.concatenate(parts))


def _array(value: Any, caller: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(keras.ops.convert_to_numpy(value) if _is_tensor(value) else value)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{caller}: {value!r:.80} has no value now: in graphs use byteps.tensorflow; expected a number, an array "
            f"or a tensor ({error})"
        ) from None
    if array.dtype.kind in "OSU":
        raise InvalidArgumentError(f"{caller}: expected a number, an array or a tensor, got {value!r:.80}")
    return array


def _like(value: Any, array: np.ndarray[Any, Any]) -> Any:
    if isinstance(value, Number):
        return array.item()
    if not _is_tensor(value):
        return array
    return keras.ops.convert_to_tensor(array)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, keras.Variable) or keras.ops.is_tensor(value)
