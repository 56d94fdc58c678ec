"""push_pull, broadcast and allgather of tensors of TensorFlow, eagerly or in a tf.function.

Eagerly they wait for the result, and raise the exceptions of byteps.errors. In a tf.function they become nodes of its
graph: no thread waits in them, and what goes wrong is raised by the function's call, as tf.errors.OpError.

Arguments that the functions share:
    tensor: of the same shape and dtype on all ranks, if not said otherwise.
    name: the same on all ranks for tensors that belong together; at most once in flight. Without names all ranks must
        make their calls, or trace their functions, in the same order.
    average: False means op=Sum.
    op: Average, Sum, Min, Max or Product; goes with `average` only if that is None.
    priority: larger ones go first.
    compression: one of `Compression`, for the way over the network.
    scope, device_dense, device_sparse: accepted for scripts of BytePS and Horovod, unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.ops import ReduceOp, check_root, resolve_op
from byteps.runtime import current_job
from byteps.tensorflow.compression import Compression, Compressor
from byteps.tensorflow.gather import gather_rows
from byteps.tensorflow.native import broadcast_node, keep, push_pull_node
from byteps.tensorflow.tensor import as_written, automatic_name, core_errors, dense

__all__ = ["allgather", "allreduce", "broadcast", "grouped_allreduce", "grouped_push_pull", "push_pull"]

AnyCompressor = type[Compressor]


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
    """The average (or what `op` says) of all ranks' tensors.

    Differentiable for Average and Sum: the gradient is the push_pull of the gradients. Of tf.IndexedSlices, which may
    have another number of rows on each rank, it gives the rows of all ranks, as tf.IndexedSlices.
    """
    if enable_async:
        raise UnsupportedError(
            "push_pull: enable_async is not supported with TensorFlow: byteps.torch has asynchronous training"
        )
    reduce_op = _either(average, op, "push_pull")
    current_job()
    if isinstance(tensor, tf.IndexedSlices):
        return _push_pull_slices(tensor, reduce_op, name, priority)
    tensor = dense(tensor, _what("push_pull", name))
    compressed, ctx = compression.compress(tensor)
    reduced = _push_pull(compressed, reduce_op, name, priority)
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
    """`push_pull` under Horovod's name and with its arguments: the tensor and the result may be scaled besides."""
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
    """`push_pull` of several tensors, named `name`.0, `name`.1 and so on; those of the front go first."""
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
    """`grouped_push_pull` under Horovod's name and with its arguments."""
    return grouped_push_pull(tensors, average, name, compression, op)


@as_written
def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """Rank `root_rank`'s tensor. Of any numeric dtype, and bool.

    In a tf.function it happens whenever the function is called, in the program's order with the other broadcasts.
    Differentiable: the root gets the sum of the gradients, the others zeros.
    """
    check_root(root_rank)
    tensor = tf.convert_to_tensor(tensor) if not isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor)) else tensor
    if isinstance(tensor, tf.Tensor) and (tensor.dtype == tf.bool or tensor.dtype.is_complex):
        return _broadcast_bits(tensor, root_rank, name)
    tensor = dense(tensor, _what("broadcast", name))
    with core_errors():
        return broadcast_node(
            tensor,
            root_rank,
            name or automatic_name(tensor, f"broadcast.{root_rank}"),
            named_dims=_changing_dims(tensor),
        )


@as_written
def allgather(tensor: Any, name: str | None = None) -> tf.Tensor:
    """The tensors of all ranks, one after the other along the first dimension, in which they may differ.

    Differentiable: each rank gets the sum of the gradients of its part.
    """
    current_job()
    tensor = dense(tensor, _what("allgather", name))
    if tensor.shape.rank == 0:
        raise InvalidArgumentError(f"{_what('allgather', name)}: a scalar has no first dimension: pass it in a list")
    with core_errors():
        (gathered,) = gather_rows(
            [tensor], name or automatic_name(tensor, "allgather", rows_differ=True), 0, stateful=True
        )
    return gathered


def _push_pull(tensor: tf.Tensor, op: ReduceOp, name: str | None, priority: int) -> tf.Tensor:
    if name is not None and not isinstance(name, str):
        raise InvalidArgumentError(f"name is {name!r}: expected a string")
    with core_errors():
        reduced = push_pull_node(
            tensor,
            name or automatic_name(tensor, str(op.value)),
            op.value,
            priority,
            named_dims=_changing_dims(tensor),
        )
    keep(reduced)
    return reduced


def _push_pull_slices(slices: tf.IndexedSlices, op: ReduceOp, name: str | None, priority: int) -> tf.IndexedSlices:
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise UnsupportedError(f"{_what('push_pull', name)}: tf.IndexedSlices cannot be reduced with {op.name}")
    values = dense(slices.values, _what("push_pull", name))
    with core_errors():
        reduced = reduce_slices(
            tf.IndexedSlices(values, slices.indices, slices.dense_shape),
            op,
            name or automatic_name(values, "slices", rows_differ=True),
            priority,
        )
    keep(reduced.values)
    return reduced


def reduce_slices(slices: tf.IndexedSlices, op: ReduceOp, name: str, priority: int) -> tf.IndexedSlices:
    """The rows of all ranks, in the order of ranks; divided by their number if `op` is Average."""
    indices, values = gather_rows([slices.indices, slices.values], name, priority)
    if op is ReduceOp.Average:
        values = values / tf.cast(current_job().size, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _broadcast_bits(tensor: tf.Tensor, root_rank: int, name: str | None) -> tf.Tensor:
    """Of a dtype that the core does not know."""
    bits = tf.cast(tensor, tf.uint8) if tensor.dtype == tf.bool else tf.bitcast(tensor, tf.uint8)
    result = broadcast(bits, root_rank, name)
    return tf.cast(result, tf.bool) if tensor.dtype == tf.bool else tf.bitcast(result, tensor.dtype)


def _changing_dims(tensor: tf.Tensor) -> int:
    """`named_dims` of a tensor whose shape may be another one in another call of the same function."""
    return 0 if tensor.shape.is_fully_defined() else -1


def _scaled(value: Any, factor: float) -> Any:
    if factor == 1.0:
        return value
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(value.values, factor), value.indices, value.dense_shape)
    tensor = tf.convert_to_tensor(value)
    return tensor * tf.cast(factor, tensor.dtype)


def _either(average: bool | None, op: ReduceOp | None, what: str) -> ReduceOp:
    if average is not None and op is not None:
        raise InvalidArgumentError(f"{what}: give either average or op, not both")
    return resolve_op(average, op)


def _what(operation: str, name: str | None) -> str:
    return operation if name is None else f"{operation} of '{name}'"


@tf.RegisterGradient("BytepsPushPull")
def _push_pull_gradient(node: Any, gradient: tf.Tensor) -> list[tf.Tensor | None]:
    op, name = ReduceOp(node.get_attr("reduce_op")), node.get_attr("tensor_name").decode()
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise UnsupportedError(f"push_pull of '{name}' with op={op.name} has no gradient: use Average or Sum")
    with core_errors():
        reduced = push_pull_node(
            gradient,
            f"{name}.gradient",
            op.value,
            node.get_attr("priority"),
            named_dims=node.get_attr("named_dims"),
        )
    return [reduced] + [None] * node.get_attr("anchors")


@tf.RegisterGradient("BytepsCollective")
def _broadcast_gradient(node: Any, gradient: tf.Tensor) -> list[tf.Tensor | None]:
    name, root_rank = node.get_attr("tensor_name").decode(), node.get_attr("root_rank")
    with core_errors():
        total = push_pull_node(
            gradient, f"{name}.gradient", ReduceOp.Sum.value, 0, named_dims=node.get_attr("named_dims")
        )
    mine = total if current_job().rank == root_rank else tf.zeros_like(total)
    return [mine] + [None] * node.get_attr("anchors")
