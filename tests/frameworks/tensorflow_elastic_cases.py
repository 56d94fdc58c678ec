"""States of byteps.tensorflow.elastic, and training with played changes of the ranks."""

from __future__ import annotations

from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from support.expect import expect_error

import byteps.tensorflow as bps
from byteps import membership
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.membership import Change
from byteps.runtime import jobs_so_far
from byteps.tensorflow.elastic import HorovodInternalError, TensorFlowKerasState, TensorFlowState

STEPS = 8


def new_model(build: bool = True) -> Any:
    """A model that differs between ranks."""
    keras.utils.set_random_seed(bps.rank())
    layers = [keras.layers.Dense(3, name="body"), keras.layers.Dropout(0.5), keras.layers.Dense(2, name="head")]
    model = keras.Sequential(layers, name="model")
    if build:
        model.build((None, 4))
    return model


def values(variables: Any) -> list[Any]:
    return [np.array(variable.numpy()) for variable in variables]


def assert_rank_0s(variables: Any) -> None:
    for mine, root in zip(values(variables), bps.broadcast_object(values(variables)), strict=True):
        np.testing.assert_array_equal(mine, root)


def step(model: Any, optimizer: Any) -> None:
    with bps.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean(tf.square(model(tf.ones([5, 4]))))
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


def case_variables_and_objects_of_rank_0() -> None:
    variables = [tf.Variable([1.0 + bps.rank()]), tf.Variable(bps.rank(), dtype=tf.int64), tf.Variable(bps.rank() == 0)]
    state = TensorFlowState(variables, epoch=10 + bps.rank())
    state.sync()
    assert [value.tolist() for value in values(variables)] == [[1.0], 0, True]
    assert state.epoch == 10
    for _ in range(2):  # what was synchronized is saved
        variables[0].assign([5.0])
        state.epoch = 11
        state.restore()
        assert (variables[0].numpy().tolist(), state.epoch) == ([1.0], 10)
    variables[0].assign([6.0])
    state.save()
    variables[0].assign([7.0])
    state.restore()
    assert variables[0].numpy().tolist() == [6.0]


def case_names_of_variables_do_not_matter() -> None:
    state = TensorFlowState([tf.Variable(float(bps.rank()), name=f"of_{bps.rank()}")])
    state.sync()
    assert state.variables[0].numpy() == 0


def case_ranks_with_other_variables_are_told() -> None:
    if bps.size() > 1:
        with expect_error(InvalidArgumentError, "TensorFlowState.sync: the ranks differ", "variable 0"):
            TensorFlowState([tf.Variable(np.zeros(2 + bps.rank()))]).sync()


def case_a_model_and_its_optimizer() -> None:
    model, optimizer = new_model(), keras.optimizers.Adam(0.1 + bps.rank())
    if bps.rank() == 0:  # the only one that has made a step
        gradients = [tf.ones_like(variable) for variable in model.trainable_variables]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    state = TensorFlowKerasState(model, optimizer, batch=bps.rank())
    state.sync()
    assert_rank_0s([*model.weights, *optimizer.variables])
    assert (optimizer.learning_rate.numpy(), optimizer.iterations.numpy(), state.batch) == (np.float32(0.1), 1, 0)
    saved = values([*model.weights, *optimizer.variables])
    step(model, optimizer)
    assert not np.array_equal(saved[0], values(model.weights)[0])
    state.restore()
    for before, after in zip(saved, values([*model.weights, *optimizer.variables]), strict=True):
        np.testing.assert_array_equal(before, after)


def case_the_optimizer_that_the_model_was_compiled_with() -> None:
    model = new_model()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    state = TensorFlowKerasState(model)
    assert state.optimizer is model.optimizer
    assert len(state.variables) == 4 + 2 + 4, "weights, iterations and learning rate, momenta"


def case_what_is_refused() -> None:
    with expect_error(InvalidArgumentError, "has no variables yet: call model.build(input_shape)"):
        TensorFlowKerasState(new_model(build=False))
    with expect_error(InvalidArgumentError, "expected a list, such as model.weights"):
        TensorFlowState()
    with expect_error(UnsupportedError, "graphs of tf.compat.v1"):
        TensorFlowState([tf.Variable(1.0)], session=object())
    with tf.Graph().as_default(), expect_error(UnsupportedError, "create the state eagerly"):
        TensorFlowState([])


def case_training_goes_on_after_changes_and_a_failure() -> None:
    model, optimizer = new_model(), keras.optimizers.SGD(0.1)
    state = bps.elastic.TensorFlowKerasState(model, optimizer, batch=0)
    changes = [None, Change(has_newcomers=True), None, Change(has_newcomers=False)]
    begins: list[int] = []
    train_step = tf.function(lambda: step(model, optimizer))

    @bps.elastic.run
    def train(state: Any) -> str:
        begins.append(state.batch)
        while state.batch < STEPS:
            train_step()
            if state.batch == 6 and len(begins) == 3:
                raise HorovodInternalError("played")
            state.batch += 1
            state.commit()
        return "done"

    jobs = jobs_so_far()
    with mock.patch.object(membership, "change_at_commit", lambda: changes.pop(0) if changes else None):
        assert train(state) == "done"
    assert begins == [0, 2, 4, 6]
    assert jobs_so_far() == jobs + 1
    assert int(optimizer.iterations.numpy()) == STEPS, "the step of the failure was undone"
    assert_rank_0s([*model.weights, *optimizer.variables])
