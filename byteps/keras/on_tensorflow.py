"""Gradients of Keras's TensorFlow backend.

The only file of byteps.keras that imports byteps.tensorflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from byteps.errors import UnsupportedError
from byteps.keras.backend import OptimizerOptions
from byteps.keras.compression import Compression
from byteps.ops import ReduceOp
from byteps.tensorflow.compression import Compression as Compressors
from byteps.tensorflow.exchange import GradientOptions, exchange_gradients
from byteps.tensorflow.native import is_compiled_by_xla

__all__ = ["all_true", "check_usable", "exchange", "is_eager", "is_sparse", "no_gradient", "outside_graphs"]


def check_usable() -> None:
    """Raises UnsupportedError in functions compiled by XLA, and with several replicas."""
    if is_compiled_by_xla():
        raise UnsupportedError(
            "DistributedOptimizer: this training step is compiled by XLA, which cannot hold an operation that waits "
            "for other ranks: call model.compile(..., jit_compile=False); in a loop of your own, put jit_compile=True "
            "on a function that computes the gradients, and apply them outside of it"
        )
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas != 1:
        raise UnsupportedError(
            f"DistributedOptimizer: under a tf.distribute strategy of {replicas} replicas each of them would send "
            "under the same names: start one process for each device with bpslaunch"
        )


def is_eager() -> bool:
    return bool(tf.executing_eagerly())


def outside_graphs() -> AbstractContextManager[Any]:
    context: AbstractContextManager[Any] = tf.init_scope()
    return context


def is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def no_gradient(variable: Any, sparse: bool) -> Any:
    shape, dtype = list(variable.shape), tf.as_dtype(variable.dtype)
    if not sparse:
        return tf.zeros(shape, dtype)
    return tf.IndexedSlices(tf.zeros([0, *shape[1:]], dtype), tf.zeros([0], tf.int32), tf.constant(shape, tf.int32))


def exchange(gradients: Sequence[Any], names: Sequence[str], options: OptimizerOptions) -> list[Any]:
    return list(exchange_gradients(gradients, names, _translated(options)))


def all_true(flag: Any, name: str) -> Any:
    (smallest,) = exchange_gradients([tf.cast(flag, tf.int32)], [name], GradientOptions(op=ReduceOp.Min))
    return tf.cast(smallest, tf.bool)


def _translated(options: OptimizerOptions) -> GradientOptions:
    compression = options.compression
    if isinstance(compression, Compression):
        compression = getattr(Compressors, compression.name)
    return GradientOptions(compression=compression, op=options.op, sparse_as_dense=options.sparse_as_dense)
