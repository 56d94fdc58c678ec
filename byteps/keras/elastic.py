"""Training whose workers come and go, under the names of Horovod, for `Model.fit`.

docs/elastic.md describes it.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from byteps.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run, run_fn
from byteps.errors import InvalidArgumentError
from byteps.keras.broadcast import broadcast_variables, build_optimizer, variables_of

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
    "run_fn",
]


class KerasState(ObjectState):
    """A model, its optimizer, and Python objects, as attributes. Copies are in host memory.

        state = KerasState(model, epoch=0, batch=0)

        callbacks = [
            UpdateBatchStateCallback(state),
            UpdateEpochStateCallback(state),
            CommitStateCallback(state),
        ]

        @bps.elastic.run
        def train(state):
            model.fit(dataset, epochs=epochs, initial_epoch=state.epoch, callbacks=callbacks)

    States of seed generators and metrics are not part of it, as they belong to one rank.
    """

    def __init__(self, model: Any, optimizer: Any = None, **attributes: Any) -> None:
        """Creates the state. Builds the optimizer if it is not built.

        Args:
            model: a built model.
            optimizer: None: the one that the model was compiled with, if it was.
            attributes: see `ObjectState`.

        Raises:
            InvalidArgumentError: a model that is not built; or see `ObjectState`.
        """
        if not model.built:
            raise InvalidArgumentError(
                f"KerasState: the model '{model.name}' has no variables yet: call model.build(input_shape)"
            )
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        build_optimizer(model, self.optimizer)
        super().__init__(**attributes)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        for (_, variable), value in zip(self._variables(), self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Makes model, optimizer and objects those of rank 0, as they are now, and saves them.

        Raises:
            InvalidArgumentError: on all ranks: their models differ. See also `ObjectState.sync`.
        """
        broadcast_variables(self._variables(), root_rank=0)
        self._save_variables()
        super().sync()

    def _variables(self) -> list[tuple[str, Any]]:
        return variables_of(self.model, self.optimizer)

    def _save_variables(self) -> None:
        self._values = [np.array(variable.numpy()) for _, variable in self._variables()]


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state at batches and at the end of each epoch.

    List it after callbacks that change the state, so that it commits what they have done.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        """Creates the callback.

        Args:
            state: the state, of any kind.
            batches_per_commit: number of batches from one commit to the next, the same on all
                ranks.

        Raises:
            InvalidArgumentError: less than one batch.
        """
        super().__init__()
        if not isinstance(batches_per_commit, int) or batches_per_commit < 1:
            raise InvalidArgumentError(
                f"CommitStateCallback: batches_per_commit is {batches_per_commit!r}: expected 1 or more"
            )
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._since_commit = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._since_commit = 0  # as on ranks that begin now

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._since_commit += 1
        if self._since_commit == self.batches_per_commit:
            self._since_commit = 0
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class _LastBatch:
    """Stands for True in `Model.stop_training`: the epoch ends, but not the training."""


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps the number of batches of the epoch that are done in `state.batch`.

    When training begins in the middle of an epoch, its first epoch has only the batches that are
    left, but at least one. For that, Keras has to know the number of batches: pass a dataset with a
    size, or steps_per_epoch, to `fit`.
    """

    def __init__(self, state: Any) -> None:
        """Args: state: a state with the attribute `batch`."""
        super().__init__()
        self.state = _checked(state, "batch", self)
        self._before = 0  # batches of this epoch that were done before `fit`

    def on_train_begin(self, logs: Any = None) -> None:
        self._before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = self._before + batch + 1
        steps = self.params.get("steps")
        if self._before and steps and self.state.batch >= steps and not self.model.stop_training:
            self.model.stop_training = _LastBatch()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = self._before = 0
        if isinstance(self.model.stop_training, _LastBatch):  # otherwise another callback has set it
            self.model.stop_training = False


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps the number of complete epochs in `state.epoch`.

    Works for both ways to go on: `fit(epochs=epochs, initial_epoch=state.epoch)`, and
    `fit(epochs=epochs - state.epoch)`, whose epochs begin with 0.
    """

    def __init__(self, state: Any) -> None:
        """Args: state: a state with the attribute `epoch`."""
        super().__init__()
        self.state = _checked(state, "epoch", self)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch += 1


def _checked(state: Any, name: str, callback: Any) -> Any:
    if not hasattr(state, name):
        raise InvalidArgumentError(
            f"{type(callback).__name__}: the state has no attribute '{name}': create it with {name}=0"
        )
    return state
