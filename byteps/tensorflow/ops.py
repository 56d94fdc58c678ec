"""push_pull, broadcast and allgather of TensorFlow's tensors, eagerly or in a tf.function.

Eagerly they wait for the result, and raise the exceptions of byteps.errors. In a tf.function they
become nodes of its graph, in which no thread waits. The function's call then raises errors as
tf.errors.OpError.

Common arguments:
    tensor: of the same shape and dtype on all ranks, unless documented otherwise. name: the same on
    all ranks for tensors that belong together; at most once in flight. Without names
        all ranks must make their calls, or trace their functions, in the same order.
    average: False means op=Sum.
    op: Average, Sum, Min, Max or Product; not together with `average`.
    priority: larger ones go first.
    compression: one of `Compression`.
    scope, device_dense, device_sparse: accepted for scripts of BytePS and Horovod, unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.ops import BROADCAST, ReduceOp, average_or_op, check_root, no_gradient_of
from byteps.runtime import (  # noqa: F401  (BytePS exports them here, too)
    current_job,
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from byteps.tensorflow.compression import AnyCompressor, Compression
from byteps.tensorflow.gather import gather_rows
from byteps.tensorflow.native import broadcast_node, keep, push_pull_node
from byteps.tensorflow.tensor import DTYPES, as_written, core_errors, dense, one_call

__all__ = ["allgather", "allreduce", "broadcast", "grouped_allreduce", "grouped_push_pull", "push_pull"]


@as_written
def push_pull(
    tensor: Any,
    scope: str = "",
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    enable_async: bool = False,
    *,
    name: str | None = None,
    priority: int = 0,
) -> Any:
    """Returns the average of all ranks' tensors, or their reduction by `op`.

    Differentiable for Average and Sum: the gradient is the push_pull of the gradients. For
    tf.IndexedSlices, whose number of rows may differ between ranks, returns the rows of all ranks
    as tf.IndexedSlices.
    """
    if enable_async:
        raise UnsupportedError(
            "push_pull: enable_async is not supported with TensorFlow: byteps.torch has asynchronous training"
        )
    with one_call(name) as known:
        reduce_op = average_or_op(average, op, "push_pull")
        if isinstance(tensor, tf.IndexedSlices):
            return _push_pull_slices(tensor, reduce_op, name, known, priority)
        tensor = dense(tensor, _what("push_pull", name))
        compressed, ctx = compression.compress(tensor)
        reduced = push_pull_node(compressed, known, reduce_op.value, priority)
        keep(reduced)
    return compression.decompress(reduced, ctx)


@as_written
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> Any:
    """`push_pull` with Horovod's name and arguments, and with factors for tensor and result."""
    reduced = push_pull(_scaled(tensor, prescale_factor), average=average, compression=compression, op=op, name=name)
    return _scaled(reduced, postscale_factor)


@as_written
def grouped_push_pull(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
) -> list[Any]:
    """`push_pull` of several tensors, named `name`.0, `name`.1 and so on.

    The first ones go first.
    """
    if isinstance(tensors, (tf.Tensor, tf.Variable)) or not isinstance(tensors, Sequence):
        raise InvalidArgumentError(f"grouped push_pull: expected a list of tensors, got {type(tensors).__name__}")
    names = [None if name is None else f"{name}.{index}" for index in range(len(tensors))]
    return [
        push_pull(tensor, average=average, compression=compression, op=op, name=tensor_name, priority=-index)
        for index, (tensor, tensor_name) in enumerate(zip(tensors, names, strict=True))
    ]


@as_written
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    name: str | None = None,
) -> list[Any]:
    """`grouped_push_pull` with Horovod's name and arguments."""
    return grouped_push_pull(tensors, average, name, compression, op)


@as_written
def broadcast(
    tensor: Any, root_rank: int, scope: str = "", name: str | None = None, is_variable: bool = True
) -> tf.Tensor:
    """Returns rank `root_rank`'s tensor, of any dtype with a fixed size.

    In a tf.function each call of the function broadcasts, in the program's order with other
    broadcasts. Differentiable: the root gets the sum of the gradients, the others zeros. The order
    of the arguments is BytePS's; in Horovod `name` is the third. `is_variable` is accepted for
    BytePS's scripts, unused: no variable is changed.
    """
    with one_call(name) as known:
        check_root(root_rank)
        tensor = dense(tensor, _what("broadcast", name), any_dtype=True)
        if tensor.dtype in DTYPES:
            return broadcast_node(tensor, root_rank, known)
        return _broadcast_bits(tensor, root_rank, known)


@as_written
def allgather(tensor: Any, name: str | None = None) -> tf.Tensor:
    """Returns the tensors of all ranks, concatenated along the first dimension, which may differ.

    Differentiable: each rank gets the sum of the gradients of its part.
    """
    with one_call(name) as known:
        tensor = dense(tensor, _what("allgather", name))
        if tensor.shape.rank == 0:
            raise InvalidArgumentError(
                f"{_what('allgather', name)}: a scalar has no first dimension: pass it in a list"
            )
        (gathered,) = gather_rows([tensor], known, 0, stateful=True)
    return gathered


def _push_pull_slices(
    slices: tf.IndexedSlices, op: ReduceOp, name: str | None, known: str, priority: int
) -> tf.IndexedSlices:
    values = dense(slices.values, _what("push_pull", name))
    reduced = reduce_slices(tf.IndexedSlices(values, slices.indices, slices.dense_shape), op, known, priority)
    keep(reduced.values)
    return reduced


def reduce_slices(
    slices: tf.IndexedSlices, op: ReduceOp, name: str, priority: int, step: tf.Tensor | None = None
) -> tf.IndexedSlices:
    """Returns the rows of all ranks, in the order of ranks. Average divides by the number of ranks.

    Raises:
        UnsupportedError: `op` is neither Average nor Sum; the average of integers.
    """
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise UnsupportedError(
            f"'{name}' is tf.IndexedSlices, and op is {op.name}: use Average or Sum, or make it dense "
            "(sparse_as_dense=True)"
        )
    if op is ReduceOp.Average and slices.dtype.is_integer:
        raise UnsupportedError(f"'{name}' is tf.IndexedSlices of {slices.dtype.name}: use op=Sum, or make it dense")
    indices, values = gather_rows([slices.indices, slices.values], name, priority, step=step)
    if op is ReduceOp.Average:
        values = values / tf.cast(current_job().size, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _broadcast_bits(tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
    """Broadcasts a tensor of a dtype that the core does not know, as bytes."""
    bits = tf.cast(tensor, tf.uint8) if tensor.dtype == tf.bool else tf.bitcast(tensor, tf.uint8)
    result = broadcast(bits, root_rank, name=name)
    return tf.cast(result, tf.bool) if tensor.dtype == tf.bool else tf.bitcast(result, tensor.dtype)


def _scaled(value: Any, factor: float) -> Any:
    if factor == 1.0:
        return value
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(value.values, factor), value.indices, value.dense_shape)
    tensor = tf.convert_to_tensor(value)
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex or float(factor).is_integer()):
        raise InvalidArgumentError(f"a tensor of {tensor.dtype.name} cannot be scaled by {factor}: tf.cast it first")
    return tensor * tf.cast(factor, tensor.dtype)


def _what(operation: str, name: str | None) -> str:
    return operation if name is None else f"{operation} of '{name}'"


@tf.RegisterGradient("BytepsPushPull")
@tf.RegisterGradient("BytepsCollective")
def _gradient(node: Any, gradient: tf.Tensor) -> list[tf.Tensor | None]:
    """Reduces the gradients as the tensors were reduced. The root of a broadcast gets their sum."""
    op, name = node.get_attr("reduce_op"), node.get_attr("tensor_name").decode()
    is_broadcast = op == BROADCAST
    if not is_broadcast and op not in (ReduceOp.Average.value, ReduceOp.Sum.value):
        raise no_gradient_of(name, ReduceOp(op).name)
    with core_errors():
        reduced = push_pull_node(
            gradient,
            f"{name}.gradient",
            ReduceOp.Sum.value if is_broadcast else op,
            node.get_attr("priority"),
        )
    if is_broadcast and current_job().rank != node.get_attr("root_rank"):
        reduced = tf.zeros_like(reduced)
    return [reduced] + [None] * node.get_attr("anchors")
