"""Sums of the gradients of several backward passes, which the ranks exchange once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from byteps.agreement import check_agreement
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.per_job import PerJob
from byteps.tensorflow.exchange import GradientOptions, exchange_gradients

__all__ = ["Passes"]


class Passes:
    """The gradient sums of one optimizer; eagerly, in a tf.function, or in a graph of tf.compat.v1.

    In such a graph the sums are local variables: checkpoints do not contain them, and
    tf.compat.v1.local_variables_initializer sets them to zero. A MonitoredSession runs it.

    Args:
        number: number of passes, of which the last one exchanges the sums.
        average: divide the sums by `number`.
        options: options of the exchange.
    """

    def __init__(self, number: int, average: bool, options: GradientOptions) -> None:
        self._number = number
        self._average = average
        self._options = options
        self._sums: dict[tuple[Any, ...], _Sums] = {}
        # Lists of variables for which the ranks have compared their numbers of passes.
        self._checked: PerJob[set[tuple[Any, ...]]] = PerJob(set)
        self._last: dict[Any, _Sums] = {}  # by variable: the sums of its last pass

    def add(self, gradients: Sequence[Any], variables: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """Adds the gradients of a pass. Returns the sums; the last pass reduces them.

        Raises:
            UnsupportedError: tf.IndexedSlices without sparse_as_dense; variables that tf.cond
                cannot change.
            InvalidArgumentError: on all ranks: their numbers of passes differ; see also
                `exchange_gradients`.
        """
        gradients = [self._dense(gradient, name) for gradient, name in zip(gradients, names, strict=True)]
        present = [index for index, gradient in enumerate(gradients) if gradient is not None]
        key = tuple(variables[index].ref() for index in present)
        if key not in self._checked.get():
            _check_changeable([variables[index] for index in present])
            line = f"backward_passes_per_step={self._number}, average_aggregated_gradients={self._average}"
            check_agreement("DistributedOptimizer", [line], "byteps.passes.agreement")
            self._checked.get().add(key)
        if key not in self._sums:
            self._sums[key] = _Sums([variables[index] for index in present], self._number)
        sums = self._sums[key]
        self._last.update(dict.fromkeys(key, sums))
        added = iter(
            tf.cond(
                sums.begin_pass(),
                lambda: self._exchange(sums, [gradients[index] for index in present], [names[p] for p in present]),
                lambda: sums.add([gradients[index] for index in present]),
            )
        )
        return [None if gradient is None else next(added) for gradient in gradients]

    def are_complete(self, variables: Sequence[Any]) -> Any:
        """Returns, as a tensor, whether the last `add` was the last pass.

        None: there was no `add`.
        """
        found = {id(sums): sums for v in variables if (sums := self._last.get(v.ref())) is not None}
        if len(found) > 1:
            raise InvalidArgumentError(
                "DistributedOptimizer: apply_gradients got gradients of several calls of compute_gradients, whose "
                "passes are counted separately: apply the result of each call by itself"
            )
        return next(iter(found.values())).are_complete() if found else None

    def _exchange(self, sums: _Sums, gradients: Sequence[Any], names: Sequence[str]) -> list[Any]:
        totals = sums.take(gradients)
        if self._average:
            totals = [total / tf.cast(self._number, total.dtype) for total in totals]
        return exchange_gradients(totals, names, self._options)

    def _dense(self, gradient: Any, name: str) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self._options.sparse_as_dense:
            raise UnsupportedError(
                f"'{name}' is tf.IndexedSlices, whose sum over backward_passes_per_step={self._number} would need "
                "the memory of a dense gradient: use sparse_as_dense=True"
            )
        return tf.convert_to_tensor(gradient)


class _Sums:
    """The sums of gradients that are computed by the same calls."""

    def __init__(self, variables: Sequence[Any], number: int) -> None:
        self._number = number
        self._pass = _zeros((), tf.int64, "byteps_pass")
        self._sums = [
            _zeros(v.shape, v.dtype.base_dtype, f"byteps_sum/{v.name.removesuffix(':0')}", v.device) for v in variables
        ]
        self._complete: Any = None

    def begin_pass(self) -> tf.Tensor:
        """Begins a pass. Returns whether it is the last one."""
        self._complete = tf.equal(tf.convert_to_tensor(self._pass.assign_add(1)) % self._number, 0)
        return self._complete

    def are_complete(self) -> tf.Tensor:
        if not tf.executing_eagerly() and getattr(self._complete, "graph", None) is tf.compat.v1.get_default_graph():
            return self._complete
        return tf.equal(self._pass.read_value() % self._number, 0)  # an earlier call

    def add(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [
            tf.convert_to_tensor(total.assign_add(gradient))
            for total, gradient in zip(self._sums, gradients, strict=True)
        ]

    def take(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums with `gradients` added, and sets the sums to zero."""
        taken = []
        for variable, gradient in zip(self._sums, gradients, strict=True):
            total = variable.read_value() + gradient
            with tf.control_dependencies([total]):
                reset = variable.assign(tf.zeros_like(gradient), read_value=False)
            with tf.control_dependencies([] if reset is None else [reset]):
                taken.append(tf.identity(total))
        return taken


def _check_changeable(variables: Sequence[Any]) -> None:
    for variable in variables:
        if variable.dtype != variable.dtype.base_dtype and tf.compat.v1.control_flow_v2_enabled():
            raise UnsupportedError(
                f"backward_passes_per_step: '{variable.name}' is a reference variable, which TensorFlow's control flow "
                "cannot change: create variables with use_resource=True, or call "
                "tf.compat.v1.disable_control_flow_v2() (or disable_v2_behavior()) first"
            )


def _zeros(shape: Any, dtype: Any, name: str, device: str = "") -> Any:
    """Creates a variable of zeros outside of functions and control flow."""
    with tf.init_scope(), tf.device(device):
        return tf.compat.v1.Variable(
            tf.zeros(shape, dtype),
            trainable=False,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
            name=name,
            use_resource=True,
        )
