"""Training whose workers come and go, under the names of Horovod: `hvd.elastic.run`.

docs/elastic.md describes it. `byteps.tensorflow.keras.elastic` has the state and the callbacks for
`Model.fit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from byteps.agreement import check_agreement
from byteps.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run, run_fn
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.numpy import broadcast_arrays

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
    "run_fn",
]


class TensorFlowState(ObjectState):
    """Variables, as `variables`, and Python objects as further attributes.

    Copies are in host memory.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: None = None, **attributes: Any) -> None:
        """Creates the state.

        Args:
            variables: of TensorFlow or Keras; the same on all ranks, in the same order.
            session: must be None.
            attributes: see `ObjectState`.

        Raises:
            InvalidArgumentError: no variables; or see `ObjectState`.
            UnsupportedError: a session of tf.compat.v1, or a call in a graph.
        """
        if session is not None or not tf.executing_eagerly():
            raise UnsupportedError(
                f"{type(self).__name__}: graphs of tf.compat.v1 contain the number of ranks, so they cannot go on when "
                "it changes: create the state eagerly, and train in a tf.function, which is traced again"
            )
        if variables is None:
            raise InvalidArgumentError(
                f"{type(self).__name__}: TensorFlow 2 has no list of all variables: expected a list, such as "
                "model.weights"
            )
        self.variables = list(variables)
        super().__init__(**attributes)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self.variables, self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Makes variables and objects those of rank 0, as they are now, and saves them.

        Raises:
            InvalidArgumentError: on all ranks: their variables differ. See also `ObjectState.sync`.
        """
        # By number: names have counters of Keras, which differ in processes that are new.
        names = [f"variable {number} of {v.dtype} {v.shape}" for number, v in enumerate(self.variables)]
        check_agreement(f"{type(self).__name__}.sync", names, "TensorFlowState.agreement")
        values = broadcast_arrays([v.numpy() for v in self.variables], 0, [f"TensorFlowState.{name}" for name in names])
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)
        self._save_variables()
        super().sync()

    def _save_variables(self) -> None:
        self._values = [np.array(variable.numpy()) for variable in self.variables]


class TensorFlowKerasState(TensorFlowState):
    """A Keras model, its optimizer, and Python objects, for training loops with a gradient tape.

    States of seed generators and metrics are not part of it, as they belong to one rank.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: object = None, **attributes: Any) -> None:
        """Creates the state. Builds the optimizer if it is not built.

        Args:
            model: a built model.
            optimizer: None: the one that the model was compiled with, if it was.
            backend: accepted for Horovod's scripts, unused.
            attributes: see `ObjectState`.

        Raises:
            InvalidArgumentError: a model that is not built; or see `ObjectState`.
        """
        if not getattr(model, "built", True):
            raise InvalidArgumentError(
                f"{type(self).__name__}: the model '{model.name}' has no variables yet: call model.build(input_shape)"
            )
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        super().__init__([*model.weights, *_variables_of(self.optimizer, model)], **attributes)


def _variables_of(optimizer: Any, model: Any) -> list[Any]:
    if optimizer is None:
        return []
    if not getattr(optimizer, "built", True):
        optimizer.build(model.trainable_variables)
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)  # a method in tf.compat.v1 and Keras 2
