"""Several ranks get the weights of one process on the whole batch, in all modes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from frameworks.keras_training import (
    BATCH,
    assert_close,
    assert_equal_on_all_ranks,
    assert_same_training,
    compiled,
    data,
    fit,
    mlp,
    of_rank_0,
    sgd,
    share,
    state,
    trained,
    unlike_others,
)
from support.expect import expect_error

import byteps.keras as bps

layers = keras.layers
optimizers = keras.optimizers


def words(**options: Any) -> keras.Model:
    table = layers.Embedding(40, 4)
    return keras.Sequential([keras.Input((6,), dtype="int32"), table, layers.Flatten(), layers.Dense(3)])


def word_data() -> tuple[np.ndarray, np.ndarray]:
    x, y = data()
    return (np.abs(x) * 13).astype(np.int32).clip(max=39), y


class Subclassed(keras.Model):
    """Builds itself from its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = layers.Dense(8, "tanh"), layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.head(self.body(x))


class OwnStep(Subclassed):
    """A model with its own training step."""

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def built(kind: type[keras.Model]) -> keras.Model:
    model = kind()
    model(np.zeros((1, 6), np.float32))
    return model


def functional() -> keras.Model:
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, "tanh")(inputs)
    return keras.Model(inputs, layers.Dense(3)(layers.Add()([hidden, layers.Dense(8)(inputs)])))


def adam(**options: Any) -> keras.optimizers.Optimizer:
    # With Keras's epsilon the first steps are the signs of the gradients, and rounding decides
    # those of tiny ones.
    return optimizers.Adam(1e-2, epsilon=1e-3, **options)


def case_sgd_with_momentum() -> None:
    assert_same_training()


def case_nesterov_with_clipnorm() -> None:
    assert_same_training(make_optimizer=lambda: sgd(nesterov=True, clipnorm=0.05))


def case_clipvalue() -> None:
    assert_same_training(make_optimizer=lambda: sgd(clipvalue=0.01))


def case_adam() -> None:
    assert_same_training(make_optimizer=adam)


def case_adamw_with_global_clipnorm() -> None:
    assert_same_training(
        make_optimizer=lambda: optimizers.AdamW(1e-2, weight_decay=0.1, epsilon=1e-3, global_clipnorm=0.1)
    )


def case_learning_rate_schedule() -> None:
    rate = optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    assert_same_training(make_optimizer=lambda: optimizers.RMSprop(rate, epsilon=1e-2, momentum=0.5))


def case_moving_average_of_weights() -> None:
    assert_same_training(make_optimizer=lambda: sgd(use_ema=True, ema_momentum=0.7))
    assert_same_training(make_optimizer=lambda: sgd(use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2))


def case_sum_instead_of_average_is_noticed() -> None:
    if bps.size() > 1:  # the tolerance can tell right from wrong
        with expect_error(AssertionError, "differs by"):
            assert_same_training(wrap=lambda o: bps.DistributedOptimizer(o, op=bps.Sum))


def case_gradient_accumulation() -> None:
    assert_same_training(make_optimizer=lambda: sgd(gradient_accumulation_steps=2, global_clipnorm=0.05))
    assert_same_training(
        make_optimizer=lambda: optimizers.AdamW(1e-2, epsilon=1e-3, gradient_accumulation_steps=2, clipnorm=0.02),
        run_eagerly=True,
    )


def case_accumulated_gradients_are_sent_once_an_update() -> None:
    model = compiled(mlp, lambda: sgd(gradient_accumulation_steps=4), distributed=True)
    fit(model, distributed=True)
    before = bps.metrics()["push_pull_bytes"]
    fit(model, distributed=True)
    sent = bps.metrics()["push_pull_bytes"] - before
    once = 4 * sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert sent < 2 * once + 2000, sent
    assert bps.size() == 1 or sent >= once, sent


def case_backward_passes_per_step() -> None:
    def averaged(optimizer: Any) -> Any:
        return bps.DistributedOptimizer(optimizer, backward_passes_per_step=2, average_aggregated_gradients=True)

    def summed(optimizer: Any) -> Any:
        return bps.DistributedOptimizer(optimizer, backward_passes_per_step=2)

    alone = of_rank_0(lambda: state(trained(mlp, lambda: sgd(gradient_accumulation_steps=2), distributed=False)))
    assert_close(alone, state(trained(mlp, sgd, distributed=True, wrap=averaged)))
    twice = of_rank_0(
        lambda: trained(
            mlp, lambda: optimizers.SGD(0.2, gradient_accumulation_steps=2), distributed=False
        ).get_weights()
    )
    together = trained(mlp, lambda: optimizers.SGD(0.1), distributed=True, wrap=summed)
    assert_close(twice, together.get_weights())


def case_loss_scale_factor() -> None:
    assert_same_training(make_optimizer=lambda: sgd(loss_scale_factor=1024.0, clipnorm=0.05))


def case_mixed_bfloat16() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:  # activations have 8 bits: another order of summation shows in the third digit
        assert_same_training(tolerance=2e-2)
    finally:
        keras.config.set_dtype_policy("float32")


def case_steps_per_execution() -> None:
    assert_same_training(steps_per_execution=2)


def case_run_eagerly() -> None:
    assert_same_training(run_eagerly=True)


def case_functional_model() -> None:
    assert_same_training(functional)


def case_own_training_step() -> None:
    assert_same_training(lambda: built(OwnStep))


def case_embedding() -> None:
    batches = word_data()
    assert_same_training(words, adam, batches=batches)
    assert_same_training(words, sgd, batches=batches, wrap=lambda o: bps.DistributedOptimizer(o, sparse_as_dense=True))
    assert_same_training(words, lambda: sgd(gradient_accumulation_steps=2), batches=batches)


def case_compression() -> None:
    for kind, tolerance in ((bps.Compression.fp16, 1e-3), (bps.Compression.bf16, 1e-2)):
        assert_same_training(
            wrap=lambda o, kind=kind: bps.DistributedOptimizer(o, compression=kind), tolerance=tolerance
        )


def case_as_with_horovod() -> None:
    def wrap(optimizer: Any) -> Any:
        return bps.DistributedOptimizer(
            optimizer, "Distributed", "/gpu:0", "", bps.Compression.none, op=bps.Average, num_groups=2, groups=None,
            gradient_predivide_factor=2.0, backward_passes_per_step=1, process_set=None,
        )  # fmt: skip

    assert_same_training(wrap=wrap)


def case_frozen_layers() -> None:
    def frozen() -> keras.Model:
        model = mlp()
        model.layers[1].trainable = False
        return model

    assert_same_training(frozen)


WAYS = ("any batch", "this batch", "eagerly")  # batch size in a step's graph


def loop(model: Any, optimizer: Any, loss_of: Any, batches: tuple[Any, Any], way: str) -> None:
    """A training loop of one's own."""

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    as_in_fit = [tf.TensorSpec([None, *part.shape[2:]], part.dtype) for part in batches]
    function = {"any batch": tf.function(step, as_in_fit), "this batch": tf.function(step), "eagerly": step}[way]
    for x, y in zip(*batches, strict=True):
        function(tf.constant(x), tf.constant(y))


def cross_entropy(model: Any, x: Any, y: Any) -> Any:
    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True))


def shares(batches: tuple[Any, Any]) -> Any:
    k = BATCH // bps.size()
    return [part[:, bps.rank() * k : (bps.rank() + 1) * k] for part in batches]


def looped(make_model: Any, loss_of: Any, distributed: bool, way: str, batches: Any) -> list[np.ndarray]:
    if distributed:
        unlike_others()
    keras.utils.set_random_seed(0)
    model, optimizer = make_model(), sgd()
    if distributed:
        optimizer = bps.DistributedOptimizer(optimizer)
    loop(model, optimizer, loss_of, shares(batches) if distributed else batches, way)
    return model.get_weights()


def case_own_loop() -> None:
    alone = of_rank_0(lambda: looped(mlp, cross_entropy, False, "any batch", data()))
    for way in WAYS:
        assert_close(alone, looped(mlp, cross_entropy, True, way, data()))


class Branches(keras.Model):
    """A model with a branch for the samples of rank 0 only, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.own, self.unused = layers.Dense(3), layers.Dense(3), layers.Dense(3)
        self.table = layers.Embedding(10, 3)
        for part in (self.common, self.own, self.unused, self.table):
            part.build((None, 6))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.common(x)

    def with_own(self, x: Any) -> Any:
        return self.common(x) + self.own(x) + self.table(tf.cast(tf.abs(x[:, 0]) * 3, tf.int32))


def case_variables_without_gradient_on_some_ranks() -> None:
    """Alone: the samples that would be rank 0's go through their branch."""
    count = BATCH // bps.size()

    def of_rank(model: Any, x: Any, y: Any) -> Any:
        logits = model.with_own(x) if bps.rank() == 0 else model(x)
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))

    def of_all(model: Any, x: Any, y: Any) -> Any:
        logits = tf.concat([model.with_own(x[:count]), model(x[count:])], 0)
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))

    alone = of_rank_0(lambda: looped(Branches, of_all, False, "any batch", data()))
    for way in WAYS:
        assert_close(alone, looped(Branches, of_rank, True, way, data()))


def case_variables_that_take_turns() -> None:
    """A variable without a gradient on any rank does not change, eagerly and in graphs."""

    def run(distributed: bool, way: str) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        model, optimizer = Branches(), sgd()
        optimizer = bps.DistributedOptimizer(optimizer) if distributed else optimizer
        optimizer.build(model.trainable_variables)
        batches = shares(data()) if distributed else data()
        for part in (model, model.with_own, model):
            loop(model, optimizer, lambda _, x, y, part=part: cross_entropy(part, x, y), batches, way)
        return model.get_weights()

    alone = of_rank_0(lambda: run(False, "any batch"))
    for way in WAYS:
        assert_close(alone, run(True, way))


def case_gradients_that_replace_variables() -> None:
    """Like the scales of float8: every rank gets the maximum."""
    variables = [keras.Variable(np.zeros(3, np.float32), name="w"), keras.Variable(np.zeros(2, np.float32), name="s")]
    variables[1].overwrite_with_gradient = True
    optimizer = bps.DistributedOptimizer(optimizers.SGD(1.0))
    mine = [tf.fill([3], float(bps.rank())), tf.constant([float(bps.rank()), -float(bps.rank())])]
    optimizer.apply(mine, variables)
    np.testing.assert_allclose(variables[0].numpy(), np.full(3, -(bps.size() - 1) / 2))
    np.testing.assert_allclose(variables[1].numpy(), [bps.size() - 1, 0])


def case_two_optimizers() -> None:
    unlike_others()
    models = [compiled(mlp, sgd, distributed=True), compiled(functional, adam, distributed=True)]
    for _ in range(2):
        for model in models:
            fit(model, distributed=True)
    for model in models:
        assert_equal_on_all_ranks(model)


def case_constants_as_gradients() -> None:
    """TensorFlow computes constants once, but they must be sent in every step."""
    variable = keras.Variable(np.zeros(3, np.float32))
    optimizer = bps.DistributedOptimizer(optimizers.SGD(1.0))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * float(bps.rank()))
        optimizer.apply(tape.gradient(loss, [variable]), [variable])

    for _ in range(4):
        step()
    np.testing.assert_allclose(variable.numpy(), np.full(3, -4 * (bps.size() - 1) / 2))


def case_models_that_build_themselves() -> None:
    """Their first gradients are of each rank's own weights; from then on all have the root's."""
    model = compiled(Subclassed, sgd, distributed=True)
    fit(model, distributed=True)
    assert_equal_on_all_ranks(model)
    x, y = data()
    model.evaluate(share(x, True), share(y, True), verbose=0)
