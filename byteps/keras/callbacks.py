"""Callbacks for Model.fit, under the names and with the arguments of BytePS and Horovod, the same on every rank."""

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
    """Replaces the model's weights and its optimizer's state by those of one rank, once in each `fit`.

    That is before the first batch if all ranks' models are built, as those are that know the shape of their input. A
    model that builds itself from its first batch gets the root's state after that batch: as it is then, or as it was
    before if the root's model was built already, for example from a file.

    Where only one rank has read a checkpoint, all need its `initial_epoch`; that they have the same is checked.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Makes it.

        Args:
            root_rank: whose state.
            device: accepted for the scripts of BytePS and Horovod, unused.
        """
        super().__init__()
        self.root_rank = root_rank
        self._is_due = False
        self._snapshot: list[np.ndarray[Any, Any]] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_due = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Other callbacks, such as BackupAndRestore, have restored what they want to by now."""
        if not self._is_due:
            return
        check_root(self.root_rank)
        check_agreement("Model.fit", [f"first epoch {epoch}"], "fit.epoch")
        is_built = all(layer.built for layer in self.model._flatten_layers())
        if is_built:
            build_optimizer(self.model)
        built = arrays.push_pull(np.array([is_built, not is_built], np.uint8), name="fit.built", op=ReduceOp.Max)
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        if is_distributed(optimizer):
            optimizer._exchange.broadcast_is_due = bool(built[1])
        if not built[1]:
            self._broadcast()
        elif is_built and rank() == self.root_rank:
            self._snapshot = [np.array(variable.numpy()) for _, variable in variables_of(self.model)]
        self._root_was_built = bool(
            arrays.broadcast(np.array([is_built], np.uint8), self.root_rank, "fit.root_was_built")[0]
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._is_due:
            self._broadcast()

    def _broadcast(self) -> None:
        self._is_due = False
        broadcast_variables(variables_of(self.model), self.root_rank, self._snapshot)
        self._snapshot = None


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages what `fit` logs at the end of an epoch, validation included, over the ranks.

    Put it before callbacks that read logs, such as ReduceLROnPlateau, EarlyStopping and ModelCheckpoint: they then do
    the same on all ranks. Ranks count alike, however many samples each has seen.
    """

    def __init__(self, device: str = "") -> None:
        """Makes it. `device` is accepted for the scripts of BytePS and Horovod, unused."""
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the averages back into `logs`.

        Raises:
            InvalidArgumentError: on all ranks: they have other metrics, or of other shapes.
        """
        logs = {} if logs is None else logs  # takes part all the same: others may have some
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
            f"MetricAverageCallback: the metric '{name}' is {value!r:.80}: expected a number; put callbacks that log "
            "something else behind it"
        ) from None
