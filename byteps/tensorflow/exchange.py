"""The exchange of gradients between ranks."""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from byteps.agreement import check_agreement
from byteps.compression import compressor_name
from byteps.ops import ReduceOp, check_op
from byteps.runtime import Job, current_job
from byteps.tensorflow.compression import AnyCompressor, Compression
from byteps.tensorflow.native import push_pull_node, step_node
from byteps.tensorflow.ops import reduce_slices
from byteps.tensorflow.tensor import as_written, core_errors, dense

__all__ = ["GradientOptions", "exchange_gradients"]


@dataclass(frozen=True)
class GradientOptions:
    """Options of the exchange of gradients.

    Args:
        compression: one of `Compression`. Does not apply to tf.IndexedSlices.
        op: the reduction.
        sparse_as_dense: make tf.IndexedSlices dense. Otherwise every rank gets the rows of all
            ranks.

    Raises:
        InvalidArgumentError: `op` is not a ReduceOp, or `compression` is not a compressor.
    """

    compression: AnyCompressor = Compression.none
    op: ReduceOp = ReduceOp.Average
    sparse_as_dense: bool = False

    def __post_init__(self) -> None:
        check_op(self.op)
        compressor_name(self.compression)

    def __repr__(self) -> str:
        """The text that ranks compare."""
        compressor = compressor_name(self.compression)
        return f"op={self.op.name}, compression={compressor}, sparse_as_dense={self.sparse_as_dense}"


@as_written
def exchange_gradients(gradients: Sequence[Any], names: Sequence[str], options: GradientOptions) -> list[Any]:
    """Returns the gradients reduced over all ranks, eagerly or as nodes of the current graph.

    All gradients are sent at the same time, and nodes wait only for the gradients that they use.
    The first ones have the highest priority, since the next forward pass begins with their layers.

    Args:
        gradients: tensors, tf.IndexedSlices or None. None stays None, and must be None on all
            ranks.
        names: names of the gradients, the same on all ranks.
        options: see `GradientOptions`.

    Raises:
        InvalidArgumentError: on all ranks: their gradients differ in names or dtypes, or in which
            of them are None or tf.IndexedSlices. The ranks compare each list of gradients once.
    """
    _check_alike(gradients, names, options)
    if not tf.executing_eagerly():
        return _exchange_all(gradients, names, options)
    # In a function the nodes do not wait for each other.
    with core_errors():
        return _exchanger(tuple(names), options)(list(gradients))


def _exchange_all(gradients: Sequence[Any], names: Sequence[str], options: GradientOptions) -> list[Any]:
    step = _step(gradients, names)
    return [
        _exchange(gradient, name, -index, options, step)
        for index, (gradient, name) in enumerate(zip(gradients, names, strict=True))
    ]


def _step(gradients: Sequence[Any], names: Sequence[str]) -> tf.Tensor:
    """Returns the number of this exchange, counted when its last gradient is ready.

    Backward computes the last gradient first.
    TensorFlow may begin an iteration of a loop before the previous one has ended. Its gradients,
    however, need the variables that the previous iteration updates.
    """
    last = next((gradient for gradient in reversed(gradients) if gradient is not None), None)
    after = [] if last is None else [last.values if isinstance(last, tf.IndexedSlices) else last]
    with tf.control_dependencies(after):
        return step_node(hashlib.sha256("\n".join(names).encode()).hexdigest()[:16])


@functools.lru_cache(maxsize=64)
def _exchanger(names: tuple[str, ...], options: GradientOptions) -> Callable[[list[Any]], list[Any]]:
    function: Callable[[list[Any]], list[Any]] = tf.function(
        lambda gradients: _exchange_all(gradients, names, options), autograph=False
    )
    return function


def _exchange(gradient: Any, name: str, priority: int, options: GradientOptions, step: tf.Tensor) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        if not options.sparse_as_dense:
            return reduce_slices(gradient, options.op, name, priority, step)
        gradient = tf.convert_to_tensor(gradient)
    gradient = dense(gradient, f"gradient '{name}'")
    compressed, ctx = options.compression.compress(gradient)
    reduced = push_pull_node(compressed, name, options.op.value, priority, step=step)
    return options.compression.decompress(reduced, ctx)


_checked: weakref.WeakKeyDictionary[Job, set[tuple[str, ...]]] = weakref.WeakKeyDictionary()


def _check_alike(gradients: Sequence[Any], names: Sequence[str], options: GradientOptions) -> None:
    lines = (repr(options), *(_line(gradient, name) for gradient, name in zip(gradients, names, strict=True)))
    checked = _checked.setdefault(current_job(), set())
    if lines not in checked:
        check_agreement("gradients", lines, "byteps.gradients.agreement")
        checked.add(lines)


def _line(gradient: Any, name: str) -> str:
    if gradient is None:
        return f"'{name}' without a gradient"
    kind = "tf.IndexedSlices" if isinstance(gradient, tf.IndexedSlices) else "tensor"
    return f"'{name}', a {kind} of {gradient.dtype.name}"  # shapes may be known in some traces only
