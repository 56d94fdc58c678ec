"""Patches Keras's LossScaleOptimizer and Trainer to work with distributed optimizers.

Model.compile may wrap a distributed optimizer in a LossScaleOptimizer, and may choose XLA, without
asking the optimizer. The patched methods check which optimizer they have; all other optimizers
behave as before.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol, cast

import keras

from byteps.keras.exchange import GradientExchange

__all__ = ["Inner", "patch_keras"]


class Inner(Protocol):
    """The members of a distributed optimizer that the patched LossScaleOptimizer uses."""

    gradient_accumulation_steps: int | None
    _exchange: GradientExchange

    def averaged(self, grads: Any, trainable_variables: Any) -> list[Any]:
        """Returns the gradients reduced over all ranks."""


@functools.cache
def patch_keras(distributed: type[Any]) -> None:
    """Patches Keras's classes for optimizers of the class `distributed`.

    Repeated calls do nothing.
    """
    _patch_loss_scaling(distributed)
    _patch_trainer(distributed)


def _patch_loss_scaling(distributed: type[Any]) -> None:
    """Makes all ranks skip the same steps.

    Keras applies gradients only if they are finite, and halves its scale if they are not. If only
    one rank skipped a step, the other ranks would wait for it in that step, and their scales would
    differ afterwards.
    """
    scaling = keras.optimizers.LossScaleOptimizer
    plain_apply, plain_check_finite = scaling.apply, scaling.check_finite

    @functools.wraps(plain_apply)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        inner = _inner(self, distributed)
        if inner is None or inner.gradient_accumulation_steps:
            plain_apply(self, grads, trainable_variables)
            return
        variables = None if trainable_variables is None else list(trainable_variables)
        # Reduces the scaled gradients, so that Keras checks the sums of all ranks for overflow.
        averaged = inner.averaged(list(grads), variables)
        with inner._exchange.reduced():
            plain_apply(self, averaged, variables)

    @functools.wraps(plain_check_finite)
    def check_finite(self: Any, grads: Any) -> Any:
        finite = plain_check_finite(self, grads)
        inner = _inner(self, distributed)
        return finite if inner is None or inner._exchange.is_reduced else inner._exchange.all_true(finite)

    scaling.apply, scaling.check_finite = apply, check_finite


def _patch_trainer(distributed: type[Any]) -> None:
    """Makes `jit_compile="auto"` choose no XLA, which cannot compile waiting for other ranks."""
    plain_resolve = getattr(keras.Model, "_resolve_auto_jit_compile", None)
    if plain_resolve is None:
        return  # Backend.check_usable raises an error that tells users what to do

    @functools.wraps(plain_resolve)
    def resolve(self: Any) -> Any:
        optimizer = getattr(self, "optimizer", None)
        is_distributed = isinstance(getattr(optimizer, "inner_optimizer", optimizer), distributed)
        return False if is_distributed else plain_resolve(self)

    keras.Model._resolve_auto_jit_compile = resolve


def _inner(scaling: Any, distributed: type[Any]) -> Inner | None:
    inner = scaling.inner_optimizer
    return cast(Inner, inner) if isinstance(inner, distributed) else None
