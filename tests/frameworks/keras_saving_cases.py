"""Files, configurations and copies of distributed optimizers, and invalid uses of them."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from frameworks.keras_training import (
    assert_close,
    assert_equal_on_all_ranks,
    compiled,
    data,
    fit,
    mlp,
    of_rank_0,
    sgd,
    state,
)
from support.expect import expect_error

import byteps.keras as bps
from byteps.errors import InvalidArgumentError, NotInitializedError, UnsupportedError
from byteps.keras.optimizer import is_distributed

SGD = keras.optimizers.SGD
_CPU = tf.config.list_physical_devices("CPU")[0]
# Two devices for MirroredStrategy.
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)


class OwnSGD(keras.optimizers.SGD):
    """An optimizer that Keras does not know."""


def trained_for(epochs: int) -> Any:
    model = compiled(mlp, sgd, distributed=False)
    fit(model, distributed=False, epochs=epochs)
    return model


def case_it_stays_the_same_object() -> None:
    for optimizer in (sgd(clipnorm=1.0), keras.optimizers.Adam(0.1)):
        before = keras.saving.serialize_keras_object(optimizer)
        kind = type(optimizer)
        assert bps.DistributedOptimizer(optimizer) is optimizer
        assert isinstance(optimizer, kind) and optimizer.__class__ is kind and type(optimizer).__name__ == kind.__name__
        assert keras.saving.serialize_keras_object(optimizer) == before
        assert optimizer is keras.optimizers.get(optimizer)


def case_copies_are_plain() -> None:
    model = compiled(mlp, sgd, distributed=True)
    fit(model, distributed=True)
    optimizer = model.optimizer
    copies = [
        copy.deepcopy(optimizer),
        copy.copy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
        SGD.from_config(optimizer.get_config()),
        keras.optimizers.deserialize(keras.optimizers.serialize(optimizer)),
        pickle.loads(pickle.dumps(model)).optimizer,
        keras.models.clone_model(model),
    ]
    for made in copies[:-1]:
        assert type(made) is SGD and not is_distributed(made) and made.get_config() == optimizer.get_config()
    bps.DistributedOptimizer(copies[0])


def case_files_are_those_of_plain_keras() -> None:
    """One epoch on all ranks, a file of rank 0, and one more epoch equal two epochs."""
    reference = of_rank_0(lambda: state(trained_for(2)))
    model = compiled(mlp, sgd, distributed=True)
    fit(model, distributed=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        plain = keras.saving.load_model(path)
        assert type(plain.optimizer) is SGD
        assert_close(state(model), state(plain), 0)
        loaded = bps.load_model(path)
        model.save_weights(Path(folder) / "a.weights.h5")
        plain.load_weights(Path(folder) / "a.weights.h5")
        model.save(Path(folder) / "legacy.h5")
        assert is_distributed(bps.load_model(Path(folder) / "legacy.h5").optimizer)
    assert is_distributed(loaded.optimizer) and loaded.optimizer is not model.optimizer
    fit(loaded, distributed=True, epochs=2, initial_epoch=1)
    assert_close(reference, state(loaded))
    assert_equal_on_all_ranks(loaded)


def case_optimizers_that_keras_does_not_know() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model = compiled(mlp, lambda: OwnSGD(0.1), distributed=True)
        fit(model, distributed=True)
        model.save(path)
        loaded = bps.load_model(path, custom_optimizers=[OwnSGD], compression=bps.Compression.fp16)
        assert isinstance(loaded.optimizer, OwnSGD) and is_distributed(loaded.optimizer)
        mlp().save(path)
        assert getattr(bps.load_model(path), "optimizer", None) is None


def case_export_and_checkpoints_of_tensorflow() -> None:
    for wrap in (bps.DistributedOptimizer, lambda o: bps.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(o))):
        model = compiled(mlp, sgd, distributed=True, wrap=wrap)
        fit(model, distributed=True)
        x = data()[0][0]
        with tempfile.TemporaryDirectory() as folder:
            model.export(f"{folder}/exported", verbose=False)
            served = tf.saved_model.load(f"{folder}/exported")
            np.testing.assert_allclose(served.serve(x), model(x), atol=1e-6)
            saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(f"{folder}/checkpoint")
            expected = state(model)
            fit(model, distributed=True)
            tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(saved)
            assert_close(expected, state(model), 0)


def case_xla() -> None:
    model = compiled(mlp, sgd, distributed=True, jit_compile=True)
    with expect_error(UnsupportedError, "XLA", "jit_compile=False"):
        fit(model, distributed=True)
    devices = tf.config.list_physical_devices
    tf.config.list_physical_devices = lambda *_: [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
    try:  # like a machine with GPUs, where Keras chooses XLA by itself
        for optimizer, expected in (
            (sgd(), True),
            (bps.DistributedOptimizer(sgd()), False),
            (keras.optimizers.LossScaleOptimizer(bps.DistributedOptimizer(sgd())), False),
        ):
            model = mlp()
            model.compile(optimizer, "mse")
            assert model.jit_compile is expected
    finally:
        tf.config.list_physical_devices = devices


def case_replicas_within_a_process() -> None:
    for devices in (["cpu:0"], ["cpu:0", "cpu:1"]):
        with tf.distribute.MirroredStrategy(devices).scope():
            model = compiled(mlp, sgd, distributed=True)
        if len(devices) == 1:
            fit(model, distributed=True)
            assert_equal_on_all_ranks(model)
        else:
            with expect_error(UnsupportedError, "2 replicas", "one process for each device"):
                fit(model, distributed=True)


def case_wrong_arguments() -> None:
    wrap = bps.DistributedOptimizer
    scaling = keras.optimizers.LossScaleOptimizer
    for optimizer in (wrap(sgd()), scaling(wrap(sgd())), wrap(scaling(sgd()))):
        with expect_error(InvalidArgumentError, "distributed already"):
            wrap(optimizer)
    for wrong in ("sgd", None, keras.optimizers.SGD, tf.compat.v1.train.GradientDescentOptimizer(0.1)):
        with expect_error(InvalidArgumentError, "expected an optimizer of Keras"):
            wrap(wrong)
    for kind, text, options in (
        (UnsupportedError, "process_set", {"process_set": object()}),
        (InvalidArgumentError, "op is 'Average'", {"op": "Average"}),
        (InvalidArgumentError, "compression is 'fp16'", {"compression": "fp16"}),
        (InvalidArgumentError, "gradient_predivide_factor is 0", {"gradient_predivide_factor": 0}),
        (InvalidArgumentError, "needs op=Average", {"gradient_predivide_factor": 2.0, "op": bps.Sum}),
        (InvalidArgumentError, "backward_passes_per_step is 0", {"backward_passes_per_step": 0}),
        (InvalidArgumentError, "num_groups is -1", {"num_groups": -1}),
    ):
        optimizer = sgd()
        with expect_error(kind, text):
            wrap(optimizer, **options)
        assert type(optimizer) is SGD and not optimizer.gradient_accumulation_steps
    with expect_error(InvalidArgumentError, "means the same: set only one"):
        wrap(sgd(gradient_accumulation_steps=2), backward_passes_per_step=2)
    optimizer = sgd()
    optimizer.build([keras.Variable(0.0)])
    with expect_error(InvalidArgumentError, "already built"):
        wrap(optimizer, backward_passes_per_step=2)


def case_gradients_and_variables_that_do_not_fit() -> None:
    optimizer = bps.DistributedOptimizer(sgd())
    variables = [keras.Variable(np.zeros(2)), keras.Variable(np.zeros(3))]
    with expect_error(InvalidArgumentError, "1 gradients for 2 variables"):
        optimizer.apply([tf.zeros(2)], variables)
    optimizer.apply([tf.zeros(2), tf.zeros(3)], variables)
    with expect_error(ValueError, "Unknown variable"):
        optimizer.apply([tf.zeros(2)], [keras.Variable(np.zeros(2))])


def case_ranks_that_differ() -> None:
    if bps.size() == 1:
        return
    odd = min(bps.rank(), 1)
    model = compiled(lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(3 + odd)]), sgd, True)
    x, y = data(1)
    with expect_error(InvalidArgumentError, "'sequential/dense/kernel' of float32 [6, 3]", "[6, 4]"):
        model.fit(x[0], y[0], verbose=0)
    optimizer = bps.DistributedOptimizer(sgd(), op=bps.Sum if odd else bps.Average)
    with expect_error(InvalidArgumentError, "op=Average", "op=Sum"):
        optimizer.apply([tf.zeros(2)], [keras.Variable(np.zeros(2))])
    optimizer = bps.DistributedOptimizer(sgd())
    sparse = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([4, 2]))
    with expect_error(InvalidArgumentError, "IndexedSlices", "sparse_as_dense"):
        optimizer.apply([sparse if odd else tf.ones((4, 2))], [keras.Variable(np.zeros((4, 2)))])


def case_without_a_job() -> None:
    if bps.size() == 1:  # other ranks would be ended by it
        bps.shutdown()
        with expect_error(NotInitializedError, "init"):
            bps.DistributedOptimizer(sgd())
        with expect_error(NotInitializedError, "init"):
            bps.push_pull(1.0)
        bps.init()
