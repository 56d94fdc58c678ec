"""Broadcasts of variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from byteps.agreement import check_agreement
from byteps.errors import AbortedError, ArgumentTypeError, InvalidArgumentError
from byteps.numpy import broadcast_arrays
from byteps.ops import check_root
from byteps.tensorflow.ops import broadcast
from byteps.tensorflow.tensor import as_written, variable_names

__all__ = ["BroadcastGlobalVariablesHook", "broadcast_global_variables", "broadcast_variables"]


@as_written
def broadcast_variables(variables: Iterable[Any], root_rank: int, scope: str = "") -> Any:
    """Replaces the values of `variables` by those of rank `root_rank`, all at once.

    Eagerly it first compares the ranks' variables, and waits. In a graph of tf.compat.v1 it returns
    the operation. In a tf.function it returns nothing, and each call of the function broadcasts.

    Args:
        variables: of TensorFlow or Keras, such as `model.variables`, of any dtype with a fixed
            size; the same on all ranks.
        root_rank: the rank that sends its values.
        scope: accepted for BytePS's scripts, unused.

    Raises:
        InvalidArgumentError: an item is not a variable. On all ranks: their variables differ.
    """
    check_root(root_rank)
    if hasattr(variables, "variables") or not isinstance(variables, Iterable):  # models, optimizers
        raise ArgumentTypeError(
            f"broadcast_variables: got {type(variables).__name__}, expected a list of variables, such as "
            "broadcast_variables(model.variables, root_rank)"
        )
    variables = list(variables)
    for variable in variables:
        if not hasattr(variable, "assign"):
            raise InvalidArgumentError(
                f"broadcast_variables: expected variables, got {type(variable).__name__}; use broadcast_object "
                "for other values"
            )
    names = variable_names(variables, "Variable.")
    if not tf.executing_eagerly():
        assignments = [
            variable.assign(broadcast(tf.convert_to_tensor(variable), root_rank, name=name))
            for variable, name in zip(variables, names, strict=True)
        ]
        return None if tf.inside_function() else tf.group(*assignments)
    lines = [f"'{name}' of {v.dtype} {v.shape}" for name, v in zip(names, variables, strict=True)]
    check_agreement("broadcast_variables", lines, "byteps.broadcast_variables.agreement")
    values = broadcast_arrays([variable.numpy() for variable in variables], root_rank, names)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return None


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the operation that broadcasts all global variables of a tf.compat.v1 graph."""
    if tf.executing_eagerly():
        raise InvalidArgumentError(
            "broadcast_global_variables: there are no global variables without a tf.compat.v1 graph: call "
            "broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts global variables when a tf.compat.v1.train.MonitoredSession is created.

    Rank `root_rank` has restored its checkpoint by then; other ranks need none. Local variables do
    not change. Put this hook before hooks that use the global step, such as StopAtStepHook with
    `num_steps`.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Args: root_rank: the rank that sends its values; device: accepted, unused."""
        super().__init__()
        self._root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Adds the operation to the graph. The session calls it."""
        if self._operation is None or self._operation.graph is not tf.compat.v1.get_default_graph():
            self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the operation. The session calls it.

        Raises:
            AbortedError: the job has ended. It is not tf.errors.AbortedError, upon which the
                session would start again and again. A lost rank raises tf.errors.UnknownError.
        """
        try:
            session.run(self._operation)
        except tf.errors.AbortedError as error:
            raise AbortedError(error.message) from error
