"""DistributedGradientTape: a tf.GradientTape with gradients averaged over all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from byteps.agreement import look_for_differences
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.numpy import sum_of_bits
from byteps.ops import Average, ReduceOp, check_synchronous
from byteps.per_job import PerJob
from byteps.tensorflow.compression import AnyCompressor, Compression
from byteps.tensorflow.exchange import GradientOptions, exchange_gradients
from byteps.tensorflow.tensor import as_written, variable_names

__all__ = ["DistributedGradientTape"]


class _Distributed:
    """The base class that is put before the class of a tape."""

    _byteps_options: GradientOptions

    @as_written
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Returns the gradients of tf.GradientTape.gradient, reduced over all ranks."""
        own = super().gradient(target, sources, output_gradients, unconnected_gradients)  # type: ignore[misc]
        flat, variables = tf.nest.flatten(own), tf.nest.flatten(sources)
        names = variable_names(variables, "Gradient.")
        _look_for_differences(variables, names)
        reduced = exchange_gradients(flat, names, self._byteps_options)
        return tf.nest.pack_sequence_as(own, reduced)


@as_written
def DistributedGradientTape(  # noqa: N802  (the name that BytePS and Horovod gave it)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: object = None,
) -> tf.GradientTape:
    """Makes `gradtape.gradient` return the average of all ranks' gradients, and returns the tape.

        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = ...
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    Returns the same object. All ranks must compute the gradients of the same variables. A gradient
    has the name of its variable: the path of a Keras variable, the name of another one.

    Args:
        gradtape: recording or not, persistent or not.
        compression: one of `Compression`.
        sparse_as_dense: make tf.IndexedSlices (of embeddings) dense. Otherwise every rank gets the
            rows of all ranks.
        op: the reduction of the gradients.
        device_dense: accepted for scripts of BytePS and Horovod, unused, like all arguments below.
        device_sparse: unused.
        gradient_predivide_factor: unused: sums of half precision are computed in float32.
        num_groups: unused: gradients are not copied into common buffers.
        groups: unused.

    Raises:
        InvalidArgumentError: not a tape, or invalid arguments.
        UnsupportedError: a tape that is distributed already; asynchronous training.
        NotInitializedError: before `init`.
    """
    check_synchronous("DistributedGradientTape")
    if not isinstance(gradtape, tf.GradientTape):
        raise InvalidArgumentError(
            f"DistributedGradientTape: expected a tf.GradientTape, got {type(gradtape).__name__}"
        )
    if isinstance(gradtape, _Distributed):
        raise UnsupportedError("DistributedGradientTape: the tape is distributed already")
    options = GradientOptions(compression, op, sparse_as_dense)
    gradtape.__class__ = _distributed_class(type(gradtape))
    gradtape._byteps_options = options
    return gradtape


_steps: PerJob[Counter[tuple[str, ...]]] = PerJob(Counter)


def _look_for_differences(variables: Sequence[Any], names: Sequence[str]) -> None:
    """Compares the ranks' variables in the second eager step.

    Scripts of Horovod broadcast variables after the first step.
    """
    if not tf.executing_eagerly():
        return
    steps, key = _steps.get(), tuple(names)
    steps[key] += 1
    if steps[key] == 2:
        look_for_differences(
            "DistributedGradientTape",
            lambda: [sum_of_bits(variable.numpy()) for variable in variables],
            list,
            "byteps.gradients.differences",
        )


def _distributed_class(plain: type[Any]) -> type[Any]:
    return type(plain.__name__, (_Distributed, plain), {"__module__": plain.__module__, "__doc__": plain.__doc__})
