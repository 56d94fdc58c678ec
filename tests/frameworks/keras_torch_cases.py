"""byteps.keras where Keras runs on torch: the same training as of one process, and what differs from TensorFlow."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from frameworks.keras_training import (
    assert_close,
    assert_equal_on_all_ranks,
    assert_same_training,
    compiled,
    data,
    fit,
    mlp,
    of_rank_0,
    sgd,
    state,
    trained,
)
from support.expect import expect_error

import byteps.keras as bps
import byteps.torch
from byteps.errors import InvalidArgumentError
from byteps.keras.backend import OptimizerOptions
from byteps.keras.on_torch import exchange
from byteps.keras.optimizer import is_distributed

optimizers = keras.optimizers
Scaling = optimizers.LossScaleOptimizer


def case_the_backend_is_torch() -> None:
    assert keras.backend.backend() == "torch"


def case_optimizers() -> None:
    makers = (
        sgd,
        lambda: sgd(nesterov=True, clipnorm=0.05),
        lambda: optimizers.Adam(1e-2, epsilon=1e-3, clipvalue=0.01),
        lambda: optimizers.AdamW(1e-2, weight_decay=0.1, epsilon=1e-3, global_clipnorm=0.1),
        lambda: sgd(use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2),
        lambda: sgd(gradient_accumulation_steps=2, global_clipnorm=0.05),
    )
    for make in makers:
        assert_same_training(make_optimizer=make)


def case_sum_instead_of_average_is_noticed() -> None:
    with expect_error(AssertionError, "differs by"):
        assert_same_training(wrap=lambda o: bps.DistributedOptimizer(o, op=bps.Sum))


def case_gradients_that_fail_on_one_rank_leave_no_rank_a_step_behind() -> None:
    culprit, several = byteps.torch.size() - 1, byteps.torch.size() > 1
    for step in range(4):
        fails = step == 1 and byteps.torch.rank() == culprit
        gradients = [torch.full((3,), float(10 * step + 1)), torch.ones(3)]
        if fails:
            gradients[0] = None
        try:
            reduced = exchange(gradients, ["first", "second"], OptimizerOptions(op=byteps.torch.Sum))
        except Exception as error:
            assert step == 1 and (fails or f"rank {culprit} (host " in str(error)), error
        else:
            assert not (step == 1 and several)
            assert torch.equal(reduced[0], torch.full((3,), (10.0 * step + 1) * byteps.torch.size()))


def case_embedding() -> None:
    def words() -> keras.Model:
        layers = [keras.layers.Embedding(40, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
        return keras.Sequential([keras.Input((6,), dtype="int32"), *layers])

    x, y = data()
    assert_same_training(words, batches=((np.abs(x) * 13).astype(np.int32).clip(max=39), y))


def case_overflow_on_one_rank() -> None:
    x, y = data()
    x[1, -1] = 1e38
    for options in ({}, {"gradient_accumulation_steps": 2}):

        def plain(options: Any = options) -> Any:
            return Scaling(sgd(**options), initial_scale=2.0**10, dynamic_growth_steps=2)

        def linear() -> keras.Model:
            return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])

        alone = of_rank_0(lambda: state(trained(linear, plain, distributed=False, batches=(x, y))))
        for wrap in (
            lambda o: Scaling(bps.DistributedOptimizer(o), initial_scale=2.0**10, dynamic_growth_steps=2),
            lambda o: bps.DistributedOptimizer(Scaling(o, initial_scale=2.0**10, dynamic_growth_steps=2)),
        ):
            model = trained(linear, lambda: sgd(**options), distributed=True, wrap=wrap, batches=(x, y))  # noqa: B023
            assert_close(alone, state(model))
            assert_equal_on_all_ranks(model)


def case_compression() -> None:
    for kind in (bps.Compression.fp16, byteps.torch.Compression.fp16):
        assert_same_training(wrap=lambda o, kind=kind: bps.DistributedOptimizer(o, compression=kind), tolerance=1e-3)


def case_variables_without_gradient_on_some_ranks() -> None:
    variables = [keras.Variable(np.zeros(2, np.float32)) for _ in range(3)]
    optimizer = bps.DistributedOptimizer(sgd())
    for step in range(3):
        own = torch.ones(2) if bps.rank() == step % 2 else None
        optimizer.apply([torch.ones(2), own, None], variables)
    common, shared, unused = (v.numpy() for v in variables)
    alone = keras.Variable(np.zeros(2, np.float32))
    reference = sgd()
    for _ in range(3):
        reference.apply([torch.full((2,), 1 / bps.size())], [alone])
    np.testing.assert_allclose(shared, alone.numpy(), rtol=1e-6)
    assert (common < shared).all() and (unused == 0).all()


def case_gradients_are_not_changed_in_place() -> None:
    gradient, variable = torch.full((2,), float(bps.rank())), keras.Variable(np.zeros(2, np.float32))
    bps.DistributedOptimizer(optimizers.SGD(1.0)).apply([gradient], [variable])
    assert gradient.tolist() == [bps.rank()] * 2
    np.testing.assert_allclose(variable.numpy(), [-(bps.size() - 1) / 2] * 2)


def case_files_and_callbacks() -> None:
    reference = of_rank_0(lambda: trained(mlp, sgd, distributed=False, fit_options={"epochs": 2}).get_weights())
    model = compiled(mlp, sgd, distributed=True)
    average = bps.callbacks.MetricAverageCallback()
    loss = fit(model, distributed=True, callbacks=[average]).history["loss"]
    assert bps.broadcast_object(loss, 0) == loss
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        loaded = bps.load_model(Path(folder) / "model.keras")
        assert not is_distributed(keras.saving.load_model(Path(folder) / "model.keras").optimizer)
    warmup = bps.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1, steps_per_epoch=4)
    fit(loaded, distributed=True, epochs=2, initial_epoch=1, callbacks=[warmup])
    assert_close(reference, loaded.get_weights())


def case_models_that_build_themselves() -> None:
    """Keras builds them before the first batch, so that all begin with the root's weights."""

    class Lazy(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head = keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.head(x)

    assert_same_training(Lazy)


def case_values() -> None:
    tensor = bps.push_pull(torch.full((2,), float(bps.rank())), average=False)
    assert isinstance(tensor, torch.Tensor) and tensor.tolist() == [sum(range(bps.size()))] * 2
    assert bps.broadcast(keras.Variable(float(bps.rank())), 1).item() == 1


def case_wrong_use() -> None:
    with expect_error(InvalidArgumentError, "expected an optimizer of Keras", "torch.optim"):
        bps.DistributedOptimizer(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    with expect_error(InvalidArgumentError, "distributed already"):
        bps.DistributedOptimizer(bps.DistributedOptimizer(sgd()))
    odd = min(bps.rank(), 1)
    with expect_error(InvalidArgumentError, "[2]", "[3]"):
        bps.DistributedOptimizer(sgd()).apply([torch.ones(2 + odd)], [keras.Variable(np.zeros(2 + odd))])
