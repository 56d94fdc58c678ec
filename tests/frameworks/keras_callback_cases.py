"""Callbacks of byteps.keras; values and variables outside of training."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from frameworks.keras_training import (
    BATCH,
    STEPS,
    Array,
    assert_close,
    assert_equal_on_all_ranks,
    compiled,
    data,
    fit,
    mlp,
    of_rank_0,
    sgd,
    share,
    state,
    unlike_others,
)
from frameworks.migration import check_page
from support.expect import expect_error
from support.said import Said

import byteps.keras as bps
import byteps.tensorflow.keras as alias
from byteps.errors import InvalidArgumentError
from byteps.keras.naming import stable_names

callbacks = bps.callbacks


class Lazy(keras.Model):
    """Builds itself from its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.head(self.body(x))


class Rates(keras.callbacks.Callback):
    """Notes the learning rate of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate.numpy()))


def trained_alone(epochs: int) -> Any:
    model = compiled(mlp, sgd, distributed=False)
    fit(model, distributed=False, epochs=epochs)
    return model


def case_state_of_another_root() -> None:
    root = bps.size() - 1
    model = compiled(mlp, lambda: sgd(nesterov=True), distributed=True)
    own = model.get_weights()
    model.optimizer.learning_rate = 0.5 + bps.rank()
    wanted = bps.broadcast_object(own, root)
    rest = {"batch_size": BATCH, "verbose": 0, "epochs": 1}
    seen: list[list[Array]] = []
    look = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda *_, **__: seen.append(model.get_weights()))
    x, y = data()
    model.fit(x[0], y[0], callbacks=[callbacks.BroadcastGlobalVariablesCallback(root), look], **rest)
    assert_close(wanted, seen[0], 0)
    assert float(model.optimizer.learning_rate.numpy()) == 0.5 + root
    assert_equal_on_all_ranks(model)


def case_training_goes_on_where_rank_0_has_read_a_checkpoint() -> None:
    """Rank 0 alone has the weights and optimizer state of the first epoch."""
    reference = of_rank_0(lambda: state(trained_alone(2)))
    model = compiled(mlp, sgd, distributed=True)
    if bps.rank() == 0:
        before = trained_alone(1)
        model.set_weights(before.get_weights())
        model.optimizer.build(model.trainable_variables)
        for variable, saved in zip(model.optimizer.variables, before.optimizer.variables, strict=True):
            variable.assign(saved)
    fit(model, distributed=True, epochs=2, initial_epoch=1)
    assert_close(reference, state(model))
    assert_equal_on_all_ranks(model)


def case_models_that_only_the_root_has_built() -> None:
    """All ranks get the root's state of before the first batch; the batch is lost."""
    model = compiled(Lazy, sgd, distributed=True)
    if bps.rank() == 0:
        model(data()[0][0])
    before = model.get_weights() if bps.rank() == 0 else None
    seen: list[list[Array]] = []
    look = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: seen.append(model.get_weights()))
    fit(model, distributed=True, callbacks=[look])
    if bps.size() > 1:
        assert_close(bps.broadcast_object(before, 0), seen[0], 0)
    assert int(model.optimizer.iterations.numpy()) == STEPS - (bps.size() > 1)
    assert_equal_on_all_ranks(model)


def case_ranks_that_begin_with_other_epochs() -> None:
    if bps.size() > 1:
        model = compiled(mlp, sgd, distributed=True)
        with expect_error(InvalidArgumentError, "rank 0 has first epoch 0", "first epoch 1", "Model.fit"):
            fit(model, distributed=True, epochs=3, initial_epoch=min(bps.rank(), 1))


def case_broadcast_of_a_model() -> None:
    model = compiled(mlp, sgd, distributed=True)
    bps.broadcast_global_variables(0, model)
    assert len(model.optimizer.variables) > 2
    assert_equal_on_all_ranks(model)
    odd = [keras.Variable(np.full((2,), bps.rank()), dtype=kind) for kind in ("bool", "int16", "bfloat16", "uint32")]
    bps.broadcast_global_variables(bps.size() - 1, odd)
    assert [float(v.numpy().astype("float64")[0]) for v in odd] == [min(1, bps.size() - 1), *[bps.size() - 1] * 3]
    with expect_error(InvalidArgumentError, "pass the model"):
        bps.broadcast_global_variables(0)
    with expect_error(TypeError, "broadcast_global_variables(root_rank, model)"):
        bps.broadcast_global_variables(model, 0)
    with expect_error(TypeError, "model.compile(DistributedOptimizer("):
        bps.DistributedOptimizer(model)
    with expect_error(InvalidArgumentError, "model.build"):
        bps.broadcast_global_variables(0, Lazy())
    with expect_error(InvalidArgumentError, f"0 to {bps.size() - 1}"):
        bps.broadcast_global_variables(bps.size(), model)
    if bps.size() > 1:
        other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1 + min(bps.rank(), 1))])
        with expect_error(InvalidArgumentError, "rank 0 has 'sequential/dense/kernel'", "[2, 1]", "[2, 2]"):
            bps.broadcast_global_variables(0, other)


def case_metrics_are_averaged() -> None:
    """With equal shares the mean of the ranks' means is that of one process.

    Later callbacks get it, too.
    """

    def losses(distributed: bool) -> list[list[float]]:
        model = compiled(mlp, sgd, distributed, metrics=["accuracy"])
        seen: list[float] = []
        look = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: seen.append(logs["val_loss"]))
        average = [callbacks.MetricAverageCallback()] if distributed else []
        x, y = data()
        held_out = share(x, distributed), share(y, distributed)
        history = fit(model, distributed, callbacks=[*average, look], validation_data=held_out, epochs=2).history
        assert seen == history["val_loss"]
        assert all(isinstance(value, float) for values in history.values() for value in values)
        return [history[key] for key in sorted(history)]

    alone, together = of_rank_0(lambda: losses(False)), losses(True)
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert bps.broadcast_object(together, 0) == together


def case_metrics_that_differ() -> None:
    average = callbacks.MetricAverageCallback()
    logs: dict[str, Any] = {"loss": float(bps.rank()), "array": np.arange(3) * bps.rank(), "a": np.float32(1)}
    average.on_epoch_end(0, logs)
    mean = (bps.size() - 1) / 2
    assert logs["loss"] == mean and logs["a"] == 1.0
    np.testing.assert_allclose(logs["array"], np.arange(3) * mean)
    average.on_epoch_end(0, {})
    if bps.size() > 1:
        with expect_error(InvalidArgumentError, "MetricAverageCallback", "rank 0 has 'own'"):
            average.on_epoch_end(0, {"loss": 1.0, **({"own": 2.0} if bps.rank() == 0 else {})})
    with expect_error(InvalidArgumentError, "'text'"):
        average.on_epoch_end(0, {"text": "no number"})


def rates_of(callback: Any, epochs: int, make_optimizer: Any = sgd, **options: Any) -> list[float]:
    model, rates = compiled(mlp, make_optimizer, distributed=True, **options), Rates()
    history = fit(model, distributed=True, epochs=epochs, callbacks=[callback, rates]).history
    assert history["lr"] == rates.rates[STEPS - 1 :: STEPS]
    return rates.rates


def case_warmup() -> None:
    ranks, steps = bps.size(), 2 * STEPS
    expected = [0.4 / ranks * (1 + (ranks - 1) * (step + 1) / steps) for step in range(steps)]
    warmup = callbacks.LearningRateWarmupCallback(initial_lr=0.4, warmup_epochs=2, verbose=1)
    np.testing.assert_allclose(rates_of(warmup, 3), [*expected, *[expected[-1]] * STEPS], rtol=1e-6)
    assert expected[-1] == 0.4
    scaling = lambda: keras.optimizers.LossScaleOptimizer(sgd())  # noqa: E731
    np.testing.assert_allclose(
        rates_of(callbacks.LearningRateWarmupCallback(0.4, 2, steps_per_epoch=STEPS), 2, scaling), expected, rtol=1e-6
    )


def case_schedules() -> None:
    schedule = callbacks.LearningRateScheduleCallback
    stairs = rates_of(schedule(0.2, lambda epoch: 0.5**epoch, start_epoch=1, end_epoch=3), 4)
    np.testing.assert_allclose(stairs[::STEPS], [0.1, 0.1, 0.05, 0.05])
    np.testing.assert_allclose(rates_of(schedule(0.2, 0.25), 1), [0.05] * STEPS)
    smooth = rates_of(schedule(0.2, lambda epoch: 1 + epoch, staircase=False), 1)
    np.testing.assert_allclose(smooth, [0.2 * (1 + step / STEPS) for step in range(STEPS)], rtol=1e-6)


def case_rates_by_the_arguments_of_byteps_and_of_horovod() -> None:
    """BytePS's arguments begin with epochs or multiplier, Horovod's with the rate."""
    warmup, schedule = callbacks.LearningRateWarmupCallback, callbacks.LearningRateScheduleCallback
    alone = lambda: keras.optimizers.SGD(0.3)  # noqa: E731
    ranks = bps.size()
    expected = {rate: [rate / ranks * (1 + (ranks - 1) * (k + 1) / STEPS) for k in range(STEPS)] for rate in (0.3, 0.4)}
    for rate, callback in ((0.3, warmup(1, True)), (0.3, warmup(warmup_epochs=1)), (0.4, warmup(0.4, 1))):
        np.testing.assert_allclose(rates_of(callback, 1, alone), expected[rate], rtol=1e-6)
    rates = {
        0.15: [schedule(0.5), schedule(lambda epoch: 0.5, 0), schedule(multiplier=0.5), schedule(0.5, 0, None, True)],
        0.2: [schedule(0.4, 0.5), schedule(0.4, lambda epoch: 0.5), schedule(0.5, initial_lr=0.4)],
    }
    for rate, them in rates.items():
        for callback in them:
            np.testing.assert_allclose(rates_of(callback, 1, alone), [rate] * STEPS, rtol=1e-6)


def case_arguments_that_could_be_of_either() -> None:
    warmup, schedule = callbacks.LearningRateWarmupCallback, callbacks.LearningRateScheduleCallback
    assert warmup(5).end_epoch == 5 and warmup(5).initial_lr is None
    assert (warmup(0.8).end_epoch, warmup(0.8).initial_lr) == (5, 0.8)
    assert (warmup(1, 5).end_epoch, warmup(1, 5).initial_lr) == (5, 1)
    for args in ((1,), (5.0,), (1.6,)):
        with expect_error(InvalidArgumentError, f"{args[0]} without names", "warmup_epochs= and initial_lr="):
            warmup(*args)
    for args in ((0.1, 30), (0.1, 2, 60), (1.0, 5, 30)):
        with expect_error(InvalidArgumentError, "without names", "start_epoch="):
            schedule(*args)
    with expect_error(InvalidArgumentError, "unexpected keyword argument 'rate'"):
        warmup(rate=3)
    with expect_error(InvalidArgumentError, "warmup_epochs is 0"):
        warmup(warmup_epochs=0)


def case_several_schedules_begin_with_the_rate_of_the_optimizer() -> None:
    """The second callback uses the rate from before the first one, and the root's on all ranks."""
    schedule = callbacks.LearningRateScheduleCallback
    model, rates = compiled(mlp, lambda: keras.optimizers.SGD(0.4 + bps.rank()), distributed=True), Rates()
    both = [schedule(0.5, end_epoch=1), schedule(0.25, start_epoch=1)]
    fit(model, distributed=True, epochs=2, callbacks=[*both, rates])
    np.testing.assert_allclose(rates.rates, [0.2] * STEPS + [0.1] * STEPS, rtol=1e-6)
    model.optimizer.learning_rate = 0.8
    rates.rates.clear()
    fit(model, distributed=True, epochs=2, callbacks=[*both, rates])
    np.testing.assert_allclose(rates.rates, [0.4] * STEPS + [0.2] * STEPS, rtol=1e-6)


def case_momentum_correction() -> None:
    """The velocity is scaled with the rate, so weights move as if it did not contain the rate."""
    for optimizer in (keras.optimizers.SGD(0.1, momentum=0.5), keras.optimizers.RMSprop(0.1, momentum=0.5)):
        model = compiled(mlp, lambda optimizer=optimizer: optimizer, distributed=True)
        bps.broadcast_global_variables(0, model)
        momentums = getattr(optimizer, "momentums", None) or optimizer._momentums
        for is_corrected, ratio in ((True, 0.5), (False, 1.0)):
            optimizer.learning_rate = 0.1
            momentums[0].assign(keras.ops.ones_like(momentums[0]))
            callback = callbacks.LearningRateScheduleCallback(0.05, 1.0, momentum_correction=is_corrected)
            callback.set_model(model)
            callback.on_train_begin()
            callback.on_epoch_begin(0)
            callback.on_train_batch_begin(0)
            np.testing.assert_allclose(momentums[0].numpy(), np.full(momentums[0].shape, ratio))


def case_schedules_that_cannot_be() -> None:
    schedule = callbacks.LearningRateScheduleCallback
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    model = compiled(mlp, lambda: keras.optimizers.SGD(rate), distributed=True)
    with expect_error(InvalidArgumentError, "ExponentialDecay", "with a number"):
        fit(model, distributed=True, callbacks=[schedule(0.1, 1.0)])
    with expect_error(InvalidArgumentError, "initial_lr is -1"):
        schedule(-1, 1.0)
    with expect_error(InvalidArgumentError, "multiplier is 'half'"):
        schedule(multiplier="half")
    with expect_error(InvalidArgumentError, "end_epoch 1 is before 2"):
        schedule(0.1, 1.0, start_epoch=2, end_epoch=1)
    smooth = schedule(0.1, lambda epoch: epoch, staircase=False)
    smooth.set_model(compiled(mlp, sgd, distributed=True))
    with expect_error(InvalidArgumentError, "pass steps_per_epoch"):
        smooth.on_train_begin()


def case_values() -> None:
    ranks, mine = bps.size(), bps.rank() + 1
    total = ranks * (ranks + 1) // 2
    assert bps.push_pull(mine, "number") == total / ranks and bps.push_pull(mine, average=False) == total
    assert bps.push_pull(float(mine), op=bps.Max) == ranks and isinstance(bps.push_pull(mine, op=bps.Sum), int)
    assert bps.allreduce(1.5 * mine, average=False, prescale_factor=2.0, postscale_factor=0.5) == 1.5 * total
    array = bps.push_pull(np.full((2, 3), mine, np.float32), op=bps.Sum)
    assert array.dtype == np.float32 and array.shape == (2, 3) and (array == total).all()
    for value in (keras.ops.ones((2,)) * mine, keras.Variable(np.full(2, mine, np.float32))):
        tensor = bps.allreduce(value, op=bps.Sum)
        assert keras.ops.is_tensor(tensor) and keras.ops.convert_to_numpy(tensor).tolist() == [total] * 2
    half = keras.ops.cast(keras.ops.ones((2,)) * mine, "bfloat16")
    assert keras.backend.standardize_dtype(bps.push_pull(half, average=False).dtype) == "bfloat16"
    assert bps.broadcast(mine, ranks - 1) == ranks and bps.broadcast(np.float32(mine), 0) == 1
    assert bps.push_pull([1.0, 2.0 * mine], average=False).tolist() == [ranks, 2.0 * total]
    gathered = bps.allgather(np.full((mine, 2), mine))
    assert gathered[:, 0].tolist() == [r for r in range(1, ranks + 1) for _ in range(r)]
    for kind in (bool, lambda flag: np.array([flag, False]), lambda flag: keras.ops.convert_to_tensor([flag, False])):
        same = bps.broadcast(kind(bps.rank() == 0), 0)
        assert type(same) is type(kind(True)), type(same)
        array = keras.ops.convert_to_numpy(same)
        assert array.dtype == bool and np.all(array == keras.ops.convert_to_numpy(kind(True)))
    flags = bps.allgather(np.array([bps.rank() == 0]))
    assert flags.dtype == bool and flags.tolist() == [True] + [False] * (ranks - 1)
    with expect_error(InvalidArgumentError, "allgather", "one dimension"):
        bps.allgather(3.0)
    if ranks > 1:
        with expect_error(InvalidArgumentError, "rank 0 has int64 [1, 2]", "[1, 1]"):
            bps.allgather(np.ones((1, 2 - min(bps.rank(), 1)), np.int64))
    for wrong in ("text", object(), keras.KerasTensor((2,))):
        with expect_error(InvalidArgumentError, "push_pull"):
            bps.push_pull(wrong)
    with expect_error(InvalidArgumentError, "either"):
        bps.allreduce(1, average=True, op=bps.Sum)


def case_ranks_that_would_train_apart_are_told_so() -> None:
    """Once; not if a callback makes them equal, be it after the first batch."""
    last = bps.size() - 1

    def said(make_model: Any, rate: float, *, broadcasts: bool) -> list[str]:
        keras.utils.set_random_seed(5 + (bps.rank() == last))
        model = make_model()
        model.compile(bps.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse", run_eagerly=make_model is Lazy)
        with Said() as lines:
            them = [callbacks.BroadcastGlobalVariablesCallback(0)] if broadcasts else []
            model.fit(np.ones((4, 6)), np.ones((4, 3)), callbacks=them, batch_size=2, verbose=0)
        return lines

    rate = 0.5 if bps.rank() == last else 0.25
    lines = said(mlp, rate, broadcasts=False)
    assert len(lines) == (last > 0 and bps.rank() in (0, last)), lines
    for line in lines:
        assert f"the weights of rank {last} are not" in line and "rank 0 has learning_rate=0.25" in line, line
        assert f"rank {last} having learning_rate=0.5" in line, line
    assert said(mlp, rate, broadcasts=True) == [] == said(Lazy, rate, broadcasts=True)


def case_names_are_the_same_on_all_ranks() -> None:
    unlike_others()
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(2, name="a_7"), keras.layers.Dense(2)]
    )
    expected = [f"sequential/{layer}/{kind}" for layer in ("dense", "a", "dense.1") for kind in ("kernel", "bias")]
    assert stable_names(model.weights) == expected
    twins = [keras.Variable(0.0, name="w"), keras.Variable(0.0, name="w"), keras.Variable(0.0, name="w_1")]
    assert stable_names(twins) == ["w", "w#2", "w.1"]


def case_the_page_for_migration_is_true() -> None:
    check_page("byteps.keras")
    assert bps.Compression.fp16() is bps.Compression.fp16


def case_the_other_name_of_the_package() -> None:
    assert alias.callbacks.MetricAverageCallback is callbacks.MetricAverageCallback
    assert alias.DistributedOptimizer is bps.DistributedOptimizer and alias.size() == bps.size()
