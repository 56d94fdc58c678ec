"""What two classes of Keras have to know of distributed optimizers.

Model.compile may put a LossScaleOptimizer around an optimizer that is distributed already, and may choose XLA; the
optimizer is not asked. So the classes themselves look at what optimizer they have; nothing changes for any other.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol, cast

import keras

from byteps.keras.exchange import GradientExchange

__all__ = ["Inner", "teach_keras"]


class Inner(Protocol):
    """What is asked of an optimizer that is distributed, inside a LossScaleOptimizer."""

    gradient_accumulation_steps: int | None
    _exchange: GradientExchange

    def averaged(self, grads: Any, trainable_variables: Any) -> list[Any]:
        """The gradients of all ranks."""


@functools.cache
def teach_keras(distributed: type[Any]) -> None:
    """Makes Keras's classes heed optimizers of the class `distributed`. Once."""
    _teach_loss_scaling(distributed)
    _teach_trainer(distributed)


def _teach_loss_scaling(distributed: type[Any]) -> None:
    """Lets all ranks skip the same steps.

    Keras applies the inner optimizer's gradients only if they are finite, and halves its scale if they are not. An
    overflow on one rank must be one on all: the others would wait for it within the step that it skips, and their
    scales would differ from then on.
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
        # While still scaled: the sums of all ranks are what is looked at, and none waits for the end of backward.
        averaged = inner.averaged(list(grads), variables)
        with inner._exchange.done():
            plain_apply(self, averaged, variables)

    @functools.wraps(plain_check_finite)
    def check_finite(self: Any, grads: Any) -> Any:
        finite = plain_check_finite(self, grads)
        inner = _inner(self, distributed)
        return finite if inner is None or inner._exchange.is_done else inner._exchange.agree(finite)

    scaling.apply, scaling.check_finite = apply, check_finite


def _teach_trainer(distributed: type[Any]) -> None:
    """Lets `jit_compile="auto"` mean no XLA, which cannot hold an operation that waits for other ranks."""
    plain_resolve = getattr(keras.Model, "_resolve_auto_jit_compile", None)
    if plain_resolve is None:
        return  # then users read in an error what to do

    @functools.wraps(plain_resolve)
    def resolve(self: Any) -> Any:
        optimizer = getattr(self, "optimizer", None)
        is_distributed = isinstance(getattr(optimizer, "inner_optimizer", optimizer), distributed)
        return False if is_distributed else plain_resolve(self)

    keras.Model._resolve_auto_jit_compile = resolve


def _inner(scaling: Any, distributed: type[Any]) -> Inner | None:
    inner = scaling.inner_optimizer
    return cast(Inner, inner) if isinstance(inner, distributed) else None
