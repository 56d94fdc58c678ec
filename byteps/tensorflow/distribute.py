"""MirroredStrategy: trains on all devices of this process, and with other processes by push_pull.

Replicas are those of tf.distribute.MirroredStrategy: one for each device of this process. Values
that replicas reduce together, above all gradients, are reduced over the processes as well.
docs/tensorflow-distribute.md has the details.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from byteps.agreement import check_agreement
from byteps.ops import Average, ReduceOp, check_synchronous
from byteps.runtime import current_job
from byteps.tensorflow.compression import AnyCompressor, Compression
from byteps.tensorflow.exchange import GradientOptions, exchange_gradients
from byteps.tensorflow.ops import broadcast
from byteps.tensorflow.tensor import as_written, automatic_name

__all__ = ["MirroredStrategy"]


class MirroredStrategy(tf.distribute.MirroredStrategy):
    """tf.distribute.MirroredStrategy over the devices of all processes of the job.

        strategy = bps.distribute.MirroredStrategy()
        with strategy.scope():
            model = ...
            model.compile(optimizer)  # a plain optimizer
        model.fit(my_part_of_the_data)

    Every process reads its own part of the data. Batches, losses and `num_replicas_in_sync` are
    those of one process. If all processes have batches of the same size, they train like one
    process with the batches of all.

    `batch_reduce_to` reduces over all processes, and so do its users: the optimizers and
    `tf.distribute.ReplicaContext.all_reduce`. All processes have to call it together. Variables
    begin with the values of rank 0. Everything else, such as `reduce`, `gather` and metrics, is
    local to the process.

    Args:
        devices: see tf.distribute.MirroredStrategy.
        cross_device_ops: reduction between the devices of this process; by default
            tf.distribute.ReductionToOneDevice.
        op: the reduction over processes. BytePS used Sum.
        compression: one of `Compression`.
        sparse_as_dense: make tf.IndexedSlices (of embeddings) dense. Otherwise every process gets
            the rows of all processes.

    Raises:
        InvalidArgumentError: invalid arguments. On all ranks: their arguments or numbers of
            replicas differ.
        UnsupportedError: asynchronous training.
        NotInitializedError: before `init`.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: Any = None,
        *,
        op: ReduceOp = Average,
        compression: AnyCompressor = Compression.none,
        sparse_as_dense: bool = False,
    ) -> None:
        check_synchronous("MirroredStrategy")
        options = GradientOptions(compression, op, sparse_as_dense)
        super().__init__(devices, cross_device_ops or tf.distribute.ReductionToOneDevice())
        _extend(self.extended, options)
        line = f"{self.num_replicas_in_sync} replicas, {options}"
        check_agreement("MirroredStrategy", [line], "byteps.distribute.agreement")

    @contextmanager
    def scope(self) -> Iterator[Any]:
        """Like the plain strategy's scope. New variables in it begin with the values of rank 0."""
        with super().scope() as context, tf.variable_creator_scope(_create_as_rank_0):
            yield context


def _extend(extended: Any, options: GradientOptions) -> None:
    """Puts _AcrossProcesses before the class of a strategy's `extended`."""
    plain = type(extended)
    extended.__class__ = type(plain.__name__, (_AcrossProcesses, plain), {"__module__": plain.__module__})
    extended._byteps_options = options


class _AcrossProcesses:
    """The base class that is put before the class of a strategy's `extended`."""

    _byteps_options: GradientOptions

    @as_written
    def batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any = None) -> list[Any]:
        """Reduces over the replicas, then over the processes.

        The first values have the highest priority.
        """
        pairs = list(value_destination_pairs)
        results = super().batch_reduce_to(reduce_op, pairs, options)  # type: ignore[misc]
        if current_job().size == 1:
            return list(results)
        mine = [_of_all_devices(result)[0] for result in results]
        reduced = exchange_gradients(mine, _names(mine), self._byteps_options)
        return [
            self.broadcast_to(value, destination)  # type: ignore[attr-defined]
            for value, (_, destination) in zip(reduced, pairs, strict=True)
        ]

    @as_written
    def call_for_each_replica(self, fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `fn`. Makes Keras's LossScaleOptimizer skip the same updates on all ranks.

        It skips an update, with its `batch_reduce_to`, if gradients are not finite. Its check is
        reduced over all ranks.
        """
        result = super().call_for_each_replica(fn, args, kwargs)  # type: ignore[misc]
        owner = type(getattr(fn, "__self__", None)).__name__
        if (owner, getattr(fn, "__name__", "")) != ("LossScaleOptimizer", "check_finite"):
            return result
        flags = [tf.cast(flag, tf.int32) for flag in _of_all_devices(result)]
        (lowest,) = exchange_gradients(
            [tf.reduce_min(flags)], ["byteps.replicas.finite"], GradientOptions(op=ReduceOp.Min)
        )
        return tf.cast(lowest, tf.bool)

    def _use_merge_call(self) -> bool:
        """Makes replicas always call `batch_reduce_to`, also if XLA compiles them."""
        return True


def _of_all_devices(result: Any) -> Sequence[Any]:
    return tuple(tf.distribute.get_strategy().experimental_local_results(result))


def _names(values: Sequence[Any]) -> list[str]:
    """Returns names that are the same on all ranks. In a graph each call returns new ones."""
    return [_name(index) for index in range(len(values))]


def _name(index: int) -> str:
    return f"byteps.replicas.{index}" if tf.executing_eagerly() else automatic_name()


def _kind(tensor: tf.Tensor, shape: Any) -> str:
    return f"{tensor.dtype.name}.{'?' if shape.rank is None else 'x'.join(map(str, shape))}"


class _ValueOfRank0:
    """The initial value of a variable, which is rank 0's."""

    def __init__(self, own: Any, dtype: Any, name: str) -> None:
        self._own = own
        self._dtype = dtype
        self._name = name

    def __call__(self) -> tf.Tensor:
        own = self._own() if callable(self._own) else self._own
        own = tf.convert_to_tensor(own, dtype=self._dtype)
        if own.dtype == tf.string:
            return own
        return broadcast(own, 0, name=f"Variable.{self._name}.{_kind(own, own.shape)}")


def _create_as_rank_0(next_creator: Any, **kwargs: Any) -> Any:
    initial_value = kwargs.get("initial_value")
    if current_job().size > 1 and not isinstance(initial_value, _ValueOfRank0):
        kwargs["initial_value"] = _ValueOfRank0(initial_value, kwargs.get("dtype"), kwargs.get("name") or "Variable")
    return next_creator(**kwargs)
