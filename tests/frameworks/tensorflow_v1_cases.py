"""DistributedOptimizer of tf.compat.v1: sessions, tf.functions and eager code."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from support.expect import expect_error

import byteps.tensorflow as bps
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.runtime import current_job
from byteps.tensorflow.distribute import MirroredStrategy

v1 = tf.compat.v1

ROWS, WIDTH, BATCH, STEPS = 40, 3, 24, 5
TOLERANCE = 1e-6

Optimizer = Callable[[], Any]
OPTIMIZERS: dict[str, Optimizer] = {
    "GradientDescent": lambda: v1.train.GradientDescentOptimizer(0.5),
    "Momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "Adam": lambda: v1.train.AdamOptimizer(0.05, epsilon=1e-3),
    "Adagrad": lambda: v1.train.AdagradOptimizer(0.1),
}


def words(step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(0, ROWS, BATCH).astype(np.int32)


def my_share(batch: np.ndarray) -> np.ndarray:
    return batch[bps.rank() :: bps.size()]


class Model:
    """An embedding, a dense layer, and a variable that no loss uses."""

    def __init__(self, variable: Callable[..., Any], seed: int = 3) -> None:
        random = np.random.default_rng(seed)
        self.table = variable(random.normal(size=(ROWS, WIDTH)).astype(np.float32), name="table")
        self.kernel = variable(random.normal(size=(WIDTH, 2)).astype(np.float32), name="kernel")
        self.bias = variable(np.zeros(2, np.float32), name="bias")
        self.unused = variable(np.ones(2, np.float32), name="unused")

    @property
    def variables(self) -> list[Any]:
        return [self.table, self.kernel, self.bias, self.unused]

    def loss(self, batch: Any, sparse: bool = False) -> tf.Tensor:
        rows = tf.gather(self.table, batch) if sparse else tf.one_hot(batch, ROWS) @ self.table
        return tf.reduce_mean(tf.square(tf.tanh(rows) @ self.kernel + self.bias - 1.0))


def in_session(optimizer: Optimizer, distributed: bool, sparse: bool = False, **options: Any) -> list[np.ndarray]:
    """Returns the variables after two updates and a pass; `passes` None: one process alone."""
    share = my_share if distributed else lambda batch: batch
    with tf.Graph().as_default():
        model = Model(v1.Variable)
        batch = v1.placeholder(tf.int32, [None])
        used = optimizer()
        if distributed:
            used = bps.DistributedOptimizer(used, **options)
        train = used.minimize(model.loss(batch, sparse), var_list=model.variables)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step in range(STEPS):
                session.run(train, {batch: share(words(step))})
            return session.run(model.variables)


def in_function(optimizer: Optimizer, distributed: bool, sparse: bool = False, eager: bool = False) -> list[np.ndarray]:
    """The same with a tf.function, or eagerly."""
    share = my_share if distributed else lambda batch: batch
    model = Model(tf.Variable)
    used = bps.DistributedOptimizer(optimizer()) if distributed else optimizer()

    def train(batch: Any) -> None:
        used.minimize(lambda: model.loss(batch, sparse), var_list=model.variables)

    step_function = train if eager else tf.function(train)
    for step in range(STEPS):
        step_function(tf.constant(share(words(step))))
    return [variable.numpy() for variable in model.variables]


def assert_same(
    expected: list[np.ndarray], got: list[np.ndarray], name: str = "", tolerance: float = TOLERANCE
) -> None:
    for one, other in zip(expected, got, strict=True):
        difference = np.abs(one - other).max()
        assert difference <= tolerance, f"{name}: differs by {difference}"
    digests = bps.allgather(tf.stack([tf.reduce_sum(tf.constant(value)) for value in got])[tf.newaxis])
    assert np.ptp(digests.numpy(), axis=0).max() == 0, f"{name}: ranks differ: {digests}"


def case_every_optimizer_in_a_session() -> None:
    for name, optimizer in OPTIMIZERS.items():
        assert_same(in_session(optimizer, False), in_session(optimizer, True), name)


def case_every_optimizer_in_a_function() -> None:
    for name, optimizer in OPTIMIZERS.items():
        assert_same(in_function(optimizer, False), in_function(optimizer, True), name)


def case_eagerly() -> None:
    for name, optimizer in OPTIMIZERS.items():
        assert_same(in_function(optimizer, False), in_function(optimizer, True, eager=True), name)


def case_sparse_gradients() -> None:
    for name, optimizer in OPTIMIZERS.items():
        alone = in_session(optimizer, False, sparse=True)
        assert_same(alone, in_session(optimizer, True, sparse=True), name)
        assert_same(alone, in_function(optimizer, True, sparse=True), name)


def case_sparse_gradients_made_dense() -> None:
    for name, optimizer in OPTIMIZERS.items():
        alone = in_session(optimizer, False)
        assert_same(alone, in_session(optimizer, True, sparse=True, sparse_as_dense=True), name)


def case_sum_and_compression() -> None:
    optimizer = OPTIMIZERS["GradientDescent"]
    as_sum = in_session(lambda: v1.train.GradientDescentOptimizer(0.5 / bps.size()), True, op=bps.Sum)
    assert_same(in_session(optimizer, False), as_sum)
    compressed = in_session(optimizer, True, compression=bps.Compression.fp16)
    assert_same(in_session(optimizer, False), compressed, tolerance=3e-3)
    assert np.abs(in_session(optimizer, False)[0] - compressed[0]).max() > TOLERANCE, "nothing was compressed"


def in_passes(
    optimizer: Optimizer, passes: int | None, mode: str, average: bool = False, sparse: bool = False
) -> list[np.ndarray]:
    """Returns the variables after two updates and a pass; `passes` None: one process alone."""
    if passes is None:
        return alone_with_large_batches(optimizer, 1.0 if average else 2.0)
    options: dict[str, Any] = {"average_aggregated_gradients": average, "sparse_as_dense": sparse}
    used = bps.DistributedOptimizer(optimizer(), backward_passes_per_step=passes, **options)
    batches = [my_share(words(step)) for step in range(2 * passes + 1)]
    if mode == "session":
        with tf.Graph().as_default():
            model = Model(v1.Variable)
            batch = v1.placeholder(tf.int32, [None])
            counter = v1.train.get_or_create_global_step()
            pairs = used.compute_gradients(model.loss(batch, sparse), var_list=model.variables)
            train = used.apply_gradients(pairs, global_step=counter)
            with v1.Session() as session:
                session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
                for own in batches:
                    session.run(train, {batch: own})
                assert session.run(counter) == len(batches)
                return session.run(model.variables)
    model = Model(tf.Variable)

    def train_eagerly(batch: Any) -> None:
        pairs = used.compute_gradients(lambda: model.loss(batch, sparse), var_list=model.variables)
        used.apply_gradients(pairs)

    step_function = tf.function(train_eagerly) if mode == "function" else train_eagerly
    for own in batches:
        step_function(tf.constant(own))
    return [variable.numpy() for variable in model.variables]


def alone_with_large_batches(optimizer: Optimizer, factor: float) -> list[np.ndarray]:
    """Returns the result of two passes an update: `factor` is 2 if they are added up."""
    model, used = Model(tf.Variable), optimizer()
    for update in range(2):
        batch = tf.constant(np.concatenate([words(2 * update), words(2 * update + 1)]))
        with tf.GradientTape() as tape:
            loss = model.loss(batch) * factor
        used.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables, strict=True))
    return [variable.numpy() for variable in model.variables]


def case_several_passes_for_each_step() -> None:
    for name in ("Momentum", "Adam"):
        for average in (False, True):
            alone = in_passes(OPTIMIZERS[name], None, "", average)
            for mode in ("session", "function", "eager"):
                assert_same(alone, in_passes(OPTIMIZERS[name], 2, mode, average), f"{name} {mode}")


def case_several_passes_of_sparse_gradients() -> None:
    alone = in_passes(OPTIMIZERS["Adam"], None, "")
    for mode in ("session", "function"):
        assert_same(alone, in_passes(OPTIMIZERS["Adam"], 2, mode, sparse=True), mode)
    used = bps.DistributedOptimizer(OPTIMIZERS["Adam"](), backward_passes_per_step=2)
    model = Model(tf.Variable)
    with expect_error(UnsupportedError, "Gradient.table", "sparse_as_dense"):
        used.compute_gradients(lambda: model.loss(tf.constant(words(0)), sparse=True), var_list=model.variables)


def case_passes_of_two_losses_are_counted_one_by_one() -> None:
    one, other = tf.Variable([0.0]), tf.Variable([0.0])
    used = bps.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)

    @tf.function
    def step() -> None:
        used.minimize(lambda: 3.0 * one, var_list=[one])

    step()
    for _ in range(4):
        used.minimize(lambda: 1.0 * other, var_list=[other])
    assert one.numpy() == 0 and other.numpy() == -4, (one, other)
    step()
    assert one.numpy() == -6, one
    pairs = used.compute_gradients(lambda: one, [one]) + used.compute_gradients(lambda: other, [other])
    with expect_error(InvalidArgumentError, "several calls of compute_gradients"):
        used.apply_gradients(pairs)


def case_passes_in_a_loop_of_a_function() -> None:
    weight = tf.Variable([1.0])
    used = bps.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.25), backward_passes_per_step=3)

    @tf.function
    def train() -> None:
        for _ in tf.range(6):
            used.minimize(lambda: tf.square(weight) * (1.0 + bps.rank()), var_list=[weight])

    train()
    mean = np.mean(1.0 + np.arange(bps.size()))
    expected = 1.0
    for _ in range(2):
        expected -= 0.25 * 3 * 2 * expected * mean
    assert abs(weight.numpy()[0] - expected) <= TOLERANCE * abs(expected), (weight, expected)


def case_clipping_sees_the_average() -> None:
    weight = tf.Variable([0.0])
    used = bps.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    pairs = used.compute_gradients(lambda: weight * (1.0 if bps.rank() == 0 else 3.0), var_list=[weight])
    mean = (3.0 * bps.size() - 2) / bps.size()
    assert pairs[0][0].numpy() == mean
    used.apply_gradients([(tf.clip_by_norm(gradient, 0.5), v) for gradient, v in pairs])
    assert weight.numpy() == -0.5


def case_reference_variables() -> None:
    train_reference_variable(1)
    with expect_error(UnsupportedError, "'weight:0' is a reference variable", "use_resource=True"):
        train_reference_variable(2)
    v1.disable_control_flow_v2()
    train_reference_variable(2)
    v1.enable_control_flow_v2()


def train_reference_variable(passes: int) -> None:
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=[1.0], use_resource=False)
        assert weight.dtype.name == "float32_ref"
        used = bps.DistributedOptimizer(v1.train.MomentumOptimizer(0.5, 0.9), backward_passes_per_step=passes)
        train = used.minimize(weight * (1.0 + bps.rank()), var_list=[weight])
        synchronize = bps.broadcast_global_variables(0)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            session.run(weight.assign([1.0 + bps.rank()]))
            session.run(synchronize)
            assert session.run(weight) == 1
            for _ in range(passes):
                session.run(train)
            expected = 1.0 - 0.5 * passes * (1 + bps.size()) / 2
            assert abs(session.run(weight)[0] - expected) <= TOLERANCE


def case_loss_scaling() -> None:
    """The wrapper inside and outside; what is not finite on one rank is skipped by all."""
    for outside in (False, True):
        weight = tf.Variable([1.0])
        inner = v1.train.GradientDescentOptimizer(1.0)
        scale = v1.mixed_precision.DynamicLossScale(initial_loss_scale=8, increment_period=100)
        if outside:
            used = v1.mixed_precision.MixedPrecisionLossScaleOptimizer(bps.DistributedOptimizer(inner), scale)
        else:
            used = bps.DistributedOptimizer(v1.mixed_precision.MixedPrecisionLossScaleOptimizer(inner, scale))
        for factor in (1.0, np.inf if bps.rank() == 0 else 1.0, 2.0):
            used.minimize(lambda weight=weight, factor=factor: weight * factor, var_list=[weight])
        assert weight.numpy() == -2, weight
        assert scale().numpy() == 4


def case_monitored_session() -> None:
    """All ranks get rank 0's values, also from a checkpoint that only rank 0 has."""
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) if bps.rank() == 0 else None
        first = in_monitored_session(own, last_step=3)
        second = in_monitored_session(own, last_step=STEPS)
        bps.barrier()
    alone = in_session(OPTIMIZERS["Adam"], False)
    assert_same(alone, second)
    assert np.abs(first[0] - second[0]).max() > TOLERANCE


def in_monitored_session(folder: Path | None, last_step: int) -> list[np.ndarray]:
    with tf.Graph().as_default():
        model = Model(v1.Variable, seed=3 + bps.rank())
        batch = v1.placeholder(tf.int32, [None])
        counter = v1.train.get_or_create_global_step()
        used = bps.DistributedOptimizer(OPTIMIZERS["Adam"](), backward_passes_per_step=1)
        train = used.minimize(model.loss(batch), var_list=model.variables, global_step=counter)
        with tf.control_dependencies([train]):
            trained = [tf.identity(variable.read_value()) for variable in model.variables]
        hooks = [bps.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=last_step)]
        values: list[np.ndarray] = []
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder and str(folder), hooks=hooks, save_checkpoint_steps=1, log_step_count_steps=None
        ) as session:
            step = session.run(counter)
            while not session.should_stop():
                values = session.run(trained, {batch: my_share(words(step))})
                step += 1
        return values


def case_what_is_no_optimizer() -> None:
    with expect_error(TypeError, "expected an optimizer", "builtins.str", "model.compile("):
        bps.DistributedOptimizer("sgd")
    plain = v1.train.GradientDescentOptimizer(1.0)
    with expect_error(InvalidArgumentError, "backward_passes_per_step is 0"):
        bps.DistributedOptimizer(plain, backward_passes_per_step=0)
    with expect_error(InvalidArgumentError, "op is 'sum'"):
        bps.DistributedOptimizer(plain, op="sum")
    used = bps.DistributedOptimizer(plain)
    assert used is plain and isinstance(used, v1.train.GradientDescentOptimizer)
    with expect_error(UnsupportedError, "distributed already"):
        bps.DistributedOptimizer(used)


def case_ranks_that_differ() -> None:
    if bps.size() == 1:
        return
    one, other = tf.Variable([0.0], name="one"), tf.Variable([0.0], name="other")
    used = bps.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    with expect_error(InvalidArgumentError, "the ranks differ"):
        used.compute_gradients(lambda: one + other, var_list=[one, other] if bps.rank() == 0 else [one])
    last = bps.rank() == bps.size() - 1
    used = bps.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=3 if last else 2)
    with expect_error(InvalidArgumentError, "the ranks differ", "backward_passes_per_step=2"):
        used.compute_gradients(lambda: one, var_list=[one])


def case_asynchronous_training() -> None:
    job = current_job()
    with mock.patch.object(job, "config", dataclasses.replace(job.config, asynchronous=True)):
        for make in (bps.DistributedOptimizer, bps.DistributedGradientTape, MirroredStrategy):
            with expect_error(UnsupportedError, "BYTEPS_ENABLE_ASYNC", "PyTorch"):
                make(v1.train.GradientDescentOptimizer(1.0))


def case_optimizers_of_keras_2() -> None:
    old = type("Optimizer", (), {"__module__": "tf_keras.src.optimizers.optimizer"})
    with expect_error(UnsupportedError, "Keras 3 is needed", "DistributedGradientTape"):
        bps.DistributedOptimizer(old())
