"""Callbacks for Model.fit with the names and arguments of BytePS and Horovod."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from byteps import numpy as arrays
from byteps.agreement import check_agreement
from byteps.errors import InvalidArgumentError
from byteps.keras.broadcast import broadcast_variables, build_optimizer, variables_of
from byteps.keras.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from byteps.keras.optimizer import is_distributed
from byteps.ops import ReduceOp, check_root
from byteps.runtime import rank

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Replaces the model's weights and optimizer state by those of one rank, once in each `fit`.

    If the models of all ranks are built, this happens before the first batch. If some are not, it
    happens after the first batch, which builds them. All ranks then get the root's state of that
    time, or of before the batch if the root's model was built already, for example from a file.

    If only one rank reads a checkpoint, all ranks must pass its `initial_epoch` to `fit`. The ranks
    compare their first epochs.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Creates the callback.

        Args:
            root_rank: the rank that sends its state.
            device: accepted for the scripts of BytePS and Horovod, unused.
        """
        super().__init__()
        self.root_rank = root_rank
        self._is_pending = False
        self._snapshot: list[np.ndarray[Any, Any]] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_pending = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Broadcasts.

        Callbacks such as BackupAndRestore restore state before, in on_train_begin.
        """
        if not self._is_pending:
            return
        check_root(self.root_rank)
        check_agreement("Model.fit", [f"first epoch {epoch}"], "fit.epoch")
        is_built = all(layer.built for layer in self.model._flatten_layers())
        if is_built:
            build_optimizer(self.model)
        built = arrays.push_pull(np.array([is_built, not is_built], np.uint8), name="fit.built", op=ReduceOp.Max)
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        if is_distributed(optimizer):
            optimizer._exchange.broadcast_is_pending = bool(built[1])
        if not built[1]:
            self._broadcast()
        elif is_built and rank() == self.root_rank:
            self._snapshot = [np.array(variable.numpy()) for _, variable in variables_of(self.model)]
        self._root_was_built = bool(
            arrays.broadcast(np.array([is_built], np.uint8), self.root_rank, "fit.root_was_built")[0]
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._is_pending:
            self._broadcast()

    def _broadcast(self) -> None:
        self._is_pending = False
        broadcast_variables(variables_of(self.model), self.root_rank, self._snapshot)
        self._snapshot = None


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the logs of each epoch over the ranks, including those of validation.

    Put it before callbacks that read logs, such as ReduceLROnPlateau, EarlyStopping and
    ModelCheckpoint, so that they do the same on all ranks. All ranks have the same weight, whatever
    their number of samples.
    """

    def __init__(self, device: str = "") -> None:
        """Creates the callback.

        `device` is accepted for the scripts of BytePS and Horovod, unused.
        """
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces the values in `logs` by their averages.

        Raises:
            InvalidArgumentError: on all ranks: their metrics differ in names or shapes.
        """
        logs = {} if logs is None else logs  # a rank without logs takes part in the comparison
        values = {name: _number(name, logs[name]) for name in sorted(logs)}
        lines = [f"'{name}' of shape {list(value.shape)}" for name, value in values.items()]
        check_agreement("MetricAverageCallback", lines, "metrics.agreement")
        if not values:
            return
        flat = np.concatenate([value.reshape(-1) for value in values.values()])
        averages = arrays.push_pull(flat, name=f"metrics.{','.join(values)}[{flat.size}]")
        offset = 0
        for name, value in values.items():
            part = averages[offset : offset + value.size].reshape(value.shape)
            logs[name] = part.item() if value.ndim == 0 else part
            offset += value.size


def _number(name: str, value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(keras.ops.convert_to_numpy(value), np.float64)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"MetricAverageCallback: the metric '{name}' is {value!r:.80}: expected a number; list callbacks that "
            "log other values after MetricAverageCallback"
        ) from None
