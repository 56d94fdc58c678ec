"""Dynamic loss scaling: ranks skip the same steps and exchange each gradient once."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
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

import byteps.keras as bps

Scaling = keras.optimizers.LossScaleOptimizer


def outside(optimizer: Any) -> Any:
    return Scaling(bps.DistributedOptimizer(optimizer), initial_scale=2.0**10, dynamic_growth_steps=2)


def inside(optimizer: Any) -> Any:
    return bps.DistributedOptimizer(Scaling(optimizer, initial_scale=2.0**10, dynamic_growth_steps=2))


def plain(**options: Any) -> Any:
    return Scaling(sgd(**options), initial_scale=2.0**10, dynamic_growth_steps=2)


def overflowing() -> tuple[np.ndarray, np.ndarray]:
    """The last sample of the second batch makes the gradients of whoever has it infinite."""
    x, y = data()
    x[1, -1] = 1e38
    return x, y


def linear() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


def assert_same_skips(**options: Any) -> None:
    batches = overflowing()
    for wrap in (outside, inside):
        alone = of_rank_0(
            lambda: state(
                trained(linear, lambda: plain(**options), distributed=False, batches=batches, fit_options=LONG)
            )
        )
        model = trained(linear, lambda: sgd(**options), distributed=True, wrap=wrap, batches=batches, fit_options=LONG)
        assert np.isfinite(model.get_weights()[0]).all()
        assert any((part == 2.0**10).all() or (part == 2.0**11).all() for part in state(model) if part.shape == ())
        assert_close(alone, state(model))
        assert_equal_on_all_ranks(model)


LONG = {"epochs": 2}


def case_loss_scaling_around_and_within() -> None:
    alone = of_rank_0(lambda: state(trained(mlp, plain, distributed=False)))
    for wrap in (outside, inside):
        assert_close(alone, state(trained(mlp, sgd, distributed=True, wrap=wrap)))


def case_overflow_on_one_rank() -> None:
    assert_same_skips()


def case_overflow_on_one_rank_while_gradients_accumulate() -> None:
    assert_same_skips(gradient_accumulation_steps=2)


def case_overflow_on_one_rank_eagerly() -> None:
    batches = overflowing()
    for wrap in (outside, inside):
        model = trained(linear, sgd, distributed=True, wrap=wrap, batches=batches, run_eagerly=True)
        assert np.isfinite(model.get_weights()[0]).all()
        assert_equal_on_all_ranks(model)


def case_compile_scales_by_itself() -> None:
    """Like Model.compile for mixed_float16, but with float32 layers for equal numbers."""

    def mixed() -> keras.Model:
        model = linear()
        model.dtype_policy = keras.DTypePolicy("mixed_float16")
        return model

    together = assert_same_training(mixed, batches=overflowing(), fit_options=LONG)
    assert isinstance(together.optimizer, Scaling)


def case_mixed_float16() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:  # activations have 11 bits: another order of summation shows in the fourth digit
        reference = of_rank_0(lambda: trained(mlp, sgd, distributed=False).get_weights())
        for wrap in (None, outside, inside):
            model = compiled(mlp, sgd, distributed=True, wrap=wrap)
            fit(model, distributed=True)
            assert isinstance(model.optimizer, Scaling)
            assert_close(reference, model.get_weights(), 3e-3)
            assert_equal_on_all_ranks(model)
    finally:
        keras.config.set_dtype_policy("float32")


def case_gradients_are_exchanged_once() -> None:
    """The average of averages is the average: only Sum shows a second exchange."""
    reference = of_rank_0(lambda: trained(linear, lambda: keras.optimizers.SGD(0.1 * bps.size()), False).get_weights())
    for wrap in (
        lambda o: Scaling(bps.DistributedOptimizer(o, op=bps.Sum)),
        lambda o: bps.DistributedOptimizer(Scaling(o), op=bps.Sum),
    ):
        together = trained(linear, lambda: keras.optimizers.SGD(0.1), distributed=True, wrap=wrap)
        assert_close(reference, together.get_weights())


def case_plain_loss_scaling_stays_as_it_was() -> None:
    keras.utils.set_random_seed(bps.rank())
    model = compiled(linear, plain, distributed=False)
    fit(model, distributed=False, batches=overflowing() if bps.rank() == 0 else None)
    scale = float(model.optimizer.dynamic_scale.numpy())
    assert scale == (2.0**10 if bps.rank() == 0 else 2.0**12), scale
