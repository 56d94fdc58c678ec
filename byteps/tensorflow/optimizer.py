"""DistributedOptimizer: optimizers that average gradients over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from byteps.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from byteps.ops import Average, ReduceOp, check_synchronous
from byteps.tensorflow.compression import AnyCompressor, Compression
from byteps.tensorflow.exchange import GradientOptions, exchange_gradients
from byteps.tensorflow.passes import Passes
from byteps.tensorflow.tensor import as_written, variable_names

__all__ = ["DistributedOptimizer"]

GraphOptimizer = tf.compat.v1.train.Optimizer


@as_written
def DistributedOptimizer(  # noqa: N802  (the name that BytePS and Horovod gave it)
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: object = None,
) -> Any:
    """Makes `optimizer` use the average of all ranks' gradients, and returns it.

        optimizer = bps.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(0.001 * bps.size()))
        train = optimizer.minimize(loss)

    Returns the same object. An optimizer of tf.compat.v1.train exchanges gradients in
    `compute_gradients`, so gradients can be clipped before `apply_gradients`. For an optimizer of
    Keras 3 see byteps.keras.DistributedOptimizer. All ranks must compute the gradients of the same
    variables. A gradient has the name of its variable.

    Args:
        optimizer: of tf.compat.v1.train, tf.compat.v1.mixed_precision or Keras 3.
        compression: one of `Compression`.
        sparse_as_dense: make tf.IndexedSlices (of embeddings) dense. Otherwise every rank gets the
            rows of all ranks.
        backward_passes_per_step: number of calls of `compute_gradients` whose gradients are added
            up before the ranks exchange the sums. `apply_gradients` changes variables only after
            the last of them, but always counts the global step. In a tf.compat.v1 graph the sums
            are local variables, which tf.compat.v1.local_variables_initializer sets to zero.
        op: the reduction of the gradients.
        average_aggregated_gradients: divide the sum of those passes by their number.
        name: accepted for scripts of BytePS and Horovod, unused, like all arguments below.
        use_locking: unused.
        device_dense: unused.
        device_sparse: unused.
        gradient_predivide_factor: unused: sums of half precision are computed in float32.
        num_groups: unused: gradients are not copied into common buffers.
        groups: unused.

    Raises:
        InvalidArgumentError: not an optimizer, or invalid arguments.
        UnsupportedError: a distributed optimizer, or one of Keras 2; asynchronous training.
        NotInitializedError: before `init`.
    """
    check_synchronous("DistributedOptimizer")
    options = GradientOptions(compression, op, sparse_as_dense)
    number = backward_passes_per_step
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidArgumentError(f"backward_passes_per_step is {number!r}: expected a whole number from 1")
    if isinstance(optimizer, _Distributed):
        raise UnsupportedError("DistributedOptimizer: the optimizer is distributed already")
    if isinstance(optimizer, GraphOptimizer):
        plain = type(optimizer)
        members = {"__module__": plain.__module__, "__doc__": plain.__doc__}
        optimizer.__class__ = type(plain.__name__, (_Distributed, plain), members)
        optimizer._byteps_options = options
        optimizer._byteps_passes = Passes(number, average_aggregated_gradients, options) if number > 1 else None
        return optimizer
    _check_keras(optimizer)
    import byteps.keras as of_keras  # not at the top: it imports this package

    return of_keras.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=number,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
    )


class _Distributed:
    """The base class that is put before the class of an optimizer of tf.compat.v1."""

    _byteps_options: GradientOptions
    _byteps_passes: Passes | None

    @as_written
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Computes gradients as the plain class does, and reduces them over all ranks."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise UnsupportedError(
                f"DistributedOptimizer: {replicas} replicas in this process, each of which would exchange gradients: "
                "use byteps.tensorflow.distribute.MirroredStrategy and the plain optimizer"
            )
        pairs = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        names = variable_names(variables, "Gradient.")
        if self._byteps_passes is None:
            reduced = exchange_gradients(gradients, names, self._byteps_options)
        else:
            reduced = self._byteps_passes.add(gradients, variables, names)
        return list(zip(reduced, variables, strict=True))

    @as_written
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Applies gradients as the plain class does, after the last of several passes.

        Earlier passes change `global_step` only.
        """
        plain = super().apply_gradients  # type: ignore[misc]
        pairs = list(grads_and_vars)
        complete = None
        if self._byteps_passes is not None:
            complete = self._byteps_passes.are_complete([v for gradient, v in pairs if gradient is not None])
        if complete is None:
            return plain(pairs, global_step, name, *args, **kwargs)
        applied = tf.cond(
            complete,
            lambda: _after(plain(pairs, None, name, *args, **kwargs)),
            lambda: tf.constant(False),
        )
        with tf.control_dependencies([applied]):
            counted = None if global_step is None else global_step.assign_add(1, read_value=False)
        operation = tf.group(applied, *([] if counted is None else [counted]))
        if not tf.executing_eagerly():
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TRAIN_OP, operation)
        return operation


def _after(operation: Any) -> tf.Tensor:
    with tf.control_dependencies([] if operation is None else [operation]):
        return tf.constant(True)


def _check_keras(optimizer: Any) -> None:
    """Raises unless `optimizer` is one of Keras 3."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(optimizer).__mro__}
    what = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
    if ("keras", "BaseOptimizer") in kinds:  # Keras 3's; a program that has one has imported Keras
        return
    if any(package in ("keras", "tf_keras") for package, _ in kinds):
        raise UnsupportedError(
            f"DistributedOptimizer: {what} is an optimizer of Keras 2, and Keras 3 is needed: TensorFlow 2.16 and "
            "newer have it unless TF_USE_LEGACY_KERAS is set; DistributedGradientTape works with any Keras"
        )
    raise ArgumentTypeError(
        f"DistributedOptimizer: expected an optimizer of tf.compat.v1.train or of Keras, got {what}; with a model, "
        "call model.compile(DistributedOptimizer(keras.optimizers.SGD()), ...)"
    )
