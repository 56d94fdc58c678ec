"""MirroredStrategy: processes with two devices each, compared with one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from support.expect import expect_error

import byteps.tensorflow as bps
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.tensorflow.distribute import MirroredStrategy

# Before TensorFlow starts.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

ROWS, BATCH, TOLERANCE = 64, 16, 1e-6
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN

random = np.random.default_rng(0)
X = random.normal(size=(ROWS, 4)).astype(np.float32)
Y = np.sin(X @ np.ones((4, 1), np.float32))


def my_share(array: np.ndarray) -> np.ndarray:
    """Returns this rank's part of each batch."""
    return array.reshape(ROWS // BATCH, bps.size(), -1, array.shape[1])[:, bps.rank()].reshape(-1, array.shape[1])


def make_model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def fitted(optimizer: keras.optimizers.Optimizer, strategy: Any = None, y: np.ndarray = Y, **options: Any) -> Any:
    """Returns a model after two epochs, of this process alone or under a strategy."""
    if strategy is None:
        model = make_model(seed=1)
        model.compile(optimizer, "mse", **options)
        model.fit(X, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        return model
    with strategy.scope():
        model = make_model(seed=1 + bps.rank())
        model.compile(type(optimizer).from_config(optimizer.get_config()), "mse", **options)
    model.fit(my_share(X), my_share(y), batch_size=BATCH // bps.size(), epochs=2, shuffle=False, verbose=0)
    return model


def arrays(model: keras.Model) -> list[np.ndarray]:
    return [np.array(weight) for weight in model.get_weights()]


def assert_same(expected: Sequence[np.ndarray], got: Sequence[np.ndarray], name: str = "") -> None:
    for one, other in zip(expected, got, strict=True):
        difference = np.abs(one - other).max()
        assert difference <= TOLERANCE, f"{name}: differs by {difference}"


def assert_equal_on_all_ranks(values: Sequence[np.ndarray]) -> None:
    for value in values:
        assert np.array_equal(bps.broadcast(tf.constant(value), 0).numpy(), value)


def case_fit() -> None:
    for name, optimizer in {
        "SGD": keras.optimizers.SGD(0.2, momentum=0.9),
        "Adam": keras.optimizers.Adam(0.05, epsilon=1e-3),
        "AdamW": keras.optimizers.AdamW(0.05, epsilon=1e-3, use_ema=True, ema_momentum=0.5),
    }.items():
        strategy = MirroredStrategy()
        assert strategy.num_replicas_in_sync == 2
        model = fitted(optimizer, strategy)
        assert_same(arrays(fitted(optimizer)), arrays(model), name)
        assert_equal_on_all_ranks(arrays(model))


def case_fit_otherwise() -> None:
    optimizer = keras.optimizers.SGD(0.2)
    alone = arrays(fitted(optimizer))
    for options in ({"steps_per_execution": 2}, {"run_eagerly": True}):
        assert_same(alone, arrays(fitted(optimizer, MirroredStrategy(), **options)), str(options))


def case_one_device() -> None:
    optimizer = keras.optimizers.SGD(0.2)
    strategy = MirroredStrategy(["CPU:1"])
    assert strategy.num_replicas_in_sync == 1
    assert_same(arrays(fitted(optimizer)), arrays(fitted(optimizer, strategy)))


def case_rank_0_evaluates_alone() -> None:
    """Metrics, evaluate and predict are local to a process, which waits for no other."""
    model = fitted(keras.optimizers.SGD(0.2), MirroredStrategy(), metrics=["mae"])
    if bps.rank() == 0:
        predicted = model.predict(X, verbose=0)
        loss, error = model.evaluate(X, Y, verbose=0)
        assert abs(error - np.abs(predicted - Y).mean()) <= TOLERANCE
        assert abs(loss - np.square(predicted - Y).mean()) <= TOLERANCE


def case_batch_normalization() -> None:
    """Layers reduce statistics over replicas and processes, as over the whole batch."""

    def build() -> keras.Model:
        layers = [keras.Input((4,)), keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.layers[-1].set_weights([np.ones((4, 1), np.float32), np.zeros(1, np.float32)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    alone = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    alone.layers[-1].set_weights([np.ones((4, 1), np.float32), np.zeros(1, np.float32)])
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    alone.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    with MirroredStrategy().scope():
        model = build()
    model.fit(my_share(X), my_share(Y), batch_size=BATCH // bps.size(), shuffle=False, verbose=0)
    assert_same(arrays(alone), arrays(model))


def case_loss_scaling() -> None:
    """All ranks skip the update in which one has a gradient that is not finite."""
    y = Y.copy()
    y[BATCH] = np.inf  # rank 0's second batch
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.2), initial_scale=64.0)
    expected, got = fitted(optimizer, y=y), fitted(optimizer, MirroredStrategy(), y=y)
    assert int(got.optimizer.iterations.numpy()) == 6
    assert float(got.optimizer.dynamic_scale.numpy()) == 16
    assert_same(arrays(expected), arrays(got))


def case_custom_loop() -> None:
    """strategy.run with apply_gradients, and with all_reduce and an update of one's own."""
    strategy, alone = MirroredStrategy(), make_model(seed=1)
    with strategy.scope():
        model, optimizer = make_model(seed=1 + bps.rank()), keras.optimizers.Adam(0.05, epsilon=1e-3)
    plain = keras.optimizers.Adam(0.05, epsilon=1e-3)
    share = BATCH // bps.size()

    def loss_of(used: keras.Model, x: Any, y: Any, whole: int) -> tf.Tensor:
        return tf.nn.compute_average_loss(tf.reduce_mean(tf.square(used(x) - y), axis=1), global_batch_size=whole)

    @tf.function
    def step(x: Any, y: Any) -> tf.Tensor:
        def on_replica(x: Any, y: Any) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(model, x, y, share)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
            return tf.distribute.get_replica_context().all_reduce(SUM, loss)

        return strategy.run(on_replica, args=(x, y))

    own = tf.data.Dataset.from_tensor_slices((my_share(X), my_share(Y))).batch(share)
    whole = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    for (x, y), (all_x, all_y) in zip(strategy.experimental_distribute_dataset(own), whole, strict=True):
        with tf.GradientTape() as tape:
            loss = loss_of(alone, all_x, all_y, BATCH)
        gradients = tape.gradient(loss, alone.trainable_variables)
        plain.apply_gradients(zip(gradients, alone.trainable_variables, strict=True))
        for reduced in strategy.experimental_local_results(step(x, y)):
            assert abs(reduced - loss) <= TOLERANCE, "all_reduce gives the loss of the whole batch"
    assert_same(arrays(alone), arrays(model))


def case_what_is_reduced() -> None:
    strategy, rank, size = MirroredStrategy(), bps.rank(), bps.size()
    by_sum = MirroredStrategy(op=bps.Sum)

    def on_replica() -> Any:
        context = tf.distribute.get_replica_context()
        value = tf.cast(context.replica_id_in_sync_group, tf.float32) + 10.0 * rank
        rows = tf.IndexedSlices(value[tf.newaxis, tf.newaxis], tf.constant([rank]), tf.constant([size, 1]))
        whole = tf.cast(value, tf.int32)
        return value, context.all_reduce(SUM, [value, rows]), context.all_reduce(MEAN, value), \
            context.all_reduce(SUM, whole)  # fmt: skip

    mean = 0.5 + 10.0 * (size - 1) / 2
    for run in (strategy.run, tf.function(strategy.run)):
        own, (total, rows), average, whole = run(on_replica)
        for device in range(2):
            assert strategy.experimental_local_results(total)[device] == 2 * mean
            assert strategy.experimental_local_results(average)[device] == mean
            assert strategy.experimental_local_results(whole)[device] == int(2 * mean)
            table = tf.convert_to_tensor(strategy.experimental_local_results(rows)[device])
            assert np.allclose(table[:, 0], (1.0 + 20.0 * np.arange(size)) / size)
        assert strategy.reduce(MEAN, own, axis=None) == 0.5 + 10.0 * rank, "reduce is of this process"
    _, (total, _), _, _ = by_sum.run(on_replica)
    assert by_sum.experimental_local_results(total)[0] == 2 * mean * size


def case_variables_begin_as_those_of_rank_0() -> None:
    strategy = MirroredStrategy()
    made: list[Any] = []

    def make() -> None:
        if not made:
            made.append(tf.Variable(tf.fill([2], 1.0 + bps.rank()), name="in_function"))

    with strategy.scope(), strategy.scope():
        variables = [
            tf.Variable([1.0 + bps.rank(), 2.0]),
            tf.Variable(lambda: bps.rank() == 0),
            tf.Variable(np.int64(bps.rank())),
            tf.Variable(f"rank {bps.rank()}"),
        ]
        tf.function(make)()
    first, flag, number, text = (variable.numpy() for variable in variables)
    assert np.array_equal(first, [1.0, 2.0]) and flag and number == 0
    assert text == f"rank {bps.rank()}".encode(), "strings stay as they are"
    assert np.array_equal(made[0].numpy(), [1.0, 1.0])
    variables[0].assign([bps.rank(), 7.0])
    bps.broadcast_variables(variables[:1], bps.size() - 1)
    for replica in strategy.experimental_local_results(variables[0]):
        assert np.array_equal(replica.numpy(), [bps.size() - 1, 7.0])


def case_optimizers_of_compat_v1() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        weight = tf.Variable([1.0])
        optimizer = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)

    def on_replica() -> None:
        optimizer.minimize(lambda: weight * (1.0 + bps.rank()), var_list=[weight])

    for _ in range(2):
        strategy.run(on_replica)
    gradient = 2 * (1.0 + (bps.size() - 1) / 2)  # the sum over replicas: this loss is not scaled
    assert abs(weight.numpy()[0] - (1.0 - 0.1 * gradient * 2.9)) <= TOLERANCE
    distributed = bps.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    with expect_error(UnsupportedError, "2 replicas", "MirroredStrategy"):
        strategy.run(lambda: distributed.compute_gradients(lambda: weight, var_list=[weight]))


def case_what_cannot_be() -> None:
    with expect_error(InvalidArgumentError, "op is 'sum'"):
        MirroredStrategy(op="sum")
    if bps.size() == 1:
        return
    with expect_error(InvalidArgumentError, "the ranks differ", "2 replicas", "1 replicas"):
        MirroredStrategy(["CPU:0", "CPU:1"] if bps.rank() == 0 else ["CPU:0"])
    with expect_error(UnsupportedError, "jit_compile"):
        fitted(keras.optimizers.SGD(0.2), MirroredStrategy(), jit_compile=True)
