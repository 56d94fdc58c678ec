"""byteps.keras.elastic on every backend, with played changes of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np
from frameworks.keras_training import compiled, mlp, sgd
from support.expect import expect_error

import byteps.keras as bps
from byteps import membership
from byteps.errors import InvalidArgumentError
from byteps.keras.elastic import (
    CommitStateCallback,
    HorovodInternalError,
    KerasState,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from byteps.membership import Change
from byteps.runtime import jobs_so_far

STEPS, EPOCHS = 5, 3
LOST, CAME = Change(has_newcomers=False), Change(has_newcomers=True)


class Batches(keras.callbacks.Callback):
    """Notes the epoch, as the state knows it, of each batch."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.epochs: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.epochs.append(self.state.epoch)


def new_state(**attributes: Any) -> Any:
    return KerasState(compiled(mlp, sgd, distributed=True), **({"batch": 0, "epoch": 0} | attributes))


def variables(state: Any) -> list[Any]:
    return [np.array(v.numpy()) for v in (*state.model.weights, *state.optimizer.variables)]


def assert_rank_0s(state: Any) -> None:
    for mine, root in zip(variables(state), bps.broadcast_object(variables(state)), strict=True):
        np.testing.assert_array_equal(mine, root)


def fit(state: Any, callbacks: Sequence[Any], **options: Any) -> Any:
    random = np.random.default_rng(1)
    x, y = random.standard_normal((2 * STEPS, 6)).astype(np.float32), random.integers(0, 3, 2 * STEPS)
    return state.model.fit(x, y, batch_size=2, verbose=0, callbacks=list(callbacks), **options)


def own(state: Any, batches_per_commit: int = 1) -> list[Any]:
    return [
        UpdateBatchStateCallback(state),
        UpdateEpochStateCallback(state),
        CommitStateCallback(state, batches_per_commit),
    ]


def played(*changes: Change | None) -> Any:
    waiting = list(changes)
    return mock.patch.object(membership, "change_at_commit", lambda: waiting.pop(0) if waiting else None)


def case_sync_takes_the_state_of_rank_0() -> None:
    state = new_state(epoch=3 + bps.rank())
    state.optimizer.learning_rate = 0.5 + bps.rank()
    state.sync()
    assert_rank_0s(state)
    assert (state.epoch, float(state.optimizer.learning_rate.numpy())) == (3, 0.5)


def case_what_was_synchronized_is_saved() -> None:
    state = new_state(epoch=bps.rank())
    state.sync()
    fit(state, [])
    state.restore()
    assert_rank_0s(state)
    assert state.epoch == 0


def case_restore_returns_to_what_was_saved() -> None:
    state = new_state()
    state.sync()
    fit(state, [])
    state.epoch = 1
    state.save()
    saved = variables(state)
    for _ in range(2):
        fit(state, [])
        state.epoch = 2
        assert not np.array_equal(saved[0], variables(state)[0])
        state.restore()
        assert state.epoch == 1
        for before, after in zip(saved, variables(state), strict=True):
            np.testing.assert_array_equal(before, after)


def case_another_optimizer_than_the_models() -> None:
    model = mlp()
    optimizer = keras.optimizers.Adam(0.1 + bps.rank())
    state = KerasState(model, optimizer)
    state.sync()
    assert_rank_0s(state)
    assert len(optimizer.variables) > 2, "it was built"
    assert np.float32(optimizer.learning_rate.numpy()) == np.float32(0.1)
    KerasState(mlp()).sync()


def case_a_model_without_variables_is_refused() -> None:
    with expect_error(InvalidArgumentError, "has no variables yet: call model.build(input_shape)"):
        KerasState(keras.Sequential([keras.layers.Dense(3)]))


def case_without_changes_there_are_all_batches() -> None:
    state = new_state()
    seen = Batches(state)
    fit(state, [seen, *own(state)], epochs=EPOCHS)
    assert seen.epochs == [0] * STEPS + [1] * STEPS + [2] * STEPS
    assert (state.epoch, state.batch) == (EPOCHS, 0)


def goes_on(first_epoch: bool, *changes: Change | None, batches_per_commit: int = 1) -> list[int]:
    """Trains EPOCHS epochs with these changes at commits; returns the epoch of each batch."""
    state = new_state()
    seen = Batches(state)
    callbacks = [seen, *own(state, batches_per_commit)]

    @bps.elastic.run
    def train(state: Any) -> None:
        rest = {"initial_epoch": state.epoch, "epochs": EPOCHS} if first_epoch else {"epochs": EPOCHS - state.epoch}
        fit(state, callbacks, **rest)

    with played(*changes):
        train(state)
    assert (state.epoch, state.batch) == (EPOCHS, 0)
    assert_rank_0s(state)
    return seen.epochs


ALL = [0] * STEPS + [1] * STEPS + [2] * STEPS


def case_an_epoch_goes_on_with_the_batches_that_are_left() -> None:
    for first_epoch in (True, False):
        assert goes_on(first_epoch, None, CAME) == ALL
        assert goes_on(first_epoch, None, LOST, None, CAME) == ALL, "twice in an epoch"
        assert goes_on(first_epoch, *[None] * (STEPS + 2), LOST) == ALL, "in the second epoch"


def case_a_change_at_the_end_of_an_epoch() -> None:
    assert goes_on(True, *[None] * STEPS, CAME) == ALL
    assert goes_on(True, *[None] * (STEPS - 1), CAME) == [0, *ALL], "at least one batch"


def case_commits_after_several_batches() -> None:
    assert goes_on(True, None, None, CAME, batches_per_commit=2) == ALL, "at the end of the epoch"
    assert goes_on(True, None, CAME, batches_per_commit=2) == ALL, "after batch 4 of 5"


def case_ranks_that_go_on_commit_at_the_same_batches_as_new_ones() -> None:
    state = new_state()
    callbacks = own(state, batches_per_commit=2)
    asked: list[tuple[int, int]] = []

    def change_at_commit() -> Change | None:
        asked.append((state.epoch, state.batch))
        return CAME if asked[-1] == (1, 0) and asked.count((1, 0)) == 1 else None

    train = bps.elastic.run(lambda state: fit(state, callbacks, initial_epoch=state.epoch, epochs=2))
    with mock.patch.object(membership, "change_at_commit", change_at_commit):
        train(state)
    assert asked == [(0, 2), (0, 4), (1, 0), (1, 2), (1, 4), (2, 0)]


def case_an_epoch_that_is_cut_short_is_not_the_end_of_training() -> None:
    state = new_state(batch=3)
    seen = Batches(state)
    history = fit(state, [seen, *own(state)], epochs=EPOCHS)
    assert seen.epochs == [0] * 2 + [1] * STEPS + [2] * STEPS
    assert len(history.epoch) == EPOCHS


def case_other_callbacks_may_still_end_the_training() -> None:
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    for place in (0, 3):
        state = new_state(batch=3)
        callbacks = own(state)
        callbacks.insert(place, Stop())
        assert len(fit(state, callbacks, epochs=EPOCHS).epoch) == 1


def case_a_failed_job_goes_on_from_the_last_commit() -> None:
    state = new_state()
    seen, failed = Batches(state), []

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3 and not failed:
                failed.append(batch)
                raise HorovodInternalError("played")

    callbacks = [seen, Fail(), *own(state, batches_per_commit=2)]
    train = bps.elastic.run(lambda state: fit(state, callbacks, epochs=EPOCHS, initial_epoch=state.epoch))
    jobs = jobs_so_far()
    train(state)
    assert seen.epochs == [0] * 2 + ALL, "two batches since the commit are repeated"
    assert jobs_so_far() == jobs + 1
    assert int(state.optimizer.iterations.numpy()) == EPOCHS * STEPS
    assert_rank_0s(state)


def case_arguments_that_are_refused() -> None:
    state = bps.elastic.ObjectState(other=0)
    with expect_error(InvalidArgumentError, "batches_per_commit is 0: expected 1 or more"):
        CommitStateCallback(state, 0)
    with expect_error(InvalidArgumentError, "no attribute 'batch': create it with batch=0"):
        UpdateBatchStateCallback(state)
    with expect_error(InvalidArgumentError, "no attribute 'epoch'"):
        UpdateEpochStateCallback(state)


def case_under_the_name_of_tf_keras() -> None:
    if keras.backend.backend() == "tensorflow":
        import byteps.tensorflow.keras as alias

        assert alias.elastic.KerasState is KerasState
        assert alias.elastic.run is bps.elastic.run
