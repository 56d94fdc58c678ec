"""Learning rates for large batches.

Goyal et al. 2017, "Accurate, Large Minibatch SGD", sections 2.1 to 3.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from numbers import Real
from typing import Any

import keras

from byteps.errors import InvalidArgumentError
from byteps.keras.conventions import SCHEDULE, WARMUP, arguments_of
from byteps.runtime import size

__all__ = ["LearningRateScheduleCallback", "LearningRateWarmupCallback"]


# Learning rate of each optimizer before the first batch of the current `fit`.
_rates_before: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` in a range of epochs.

    The range begins with `start_epoch` and ends before `end_epoch`.
    It does not change the rate in other epochs, so several of these callbacks can follow each
    other. Takes the arguments of BytePS, or those of Horovod, which begin with the rate:

        LearningRateScheduleCallback(multiplier, start_epoch=0, end_epoch=None, staircase=True,
                                     momentum_correction=True, steps_per_epoch=None,
                                     initial_lr=None)
        LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, ...)

    Args:
        multiplier: a number, or a function of the epoch.
        start_epoch: the first epoch, from 0.
        end_epoch: the first epoch after the schedule; None: the schedule does not end.
        staircase: change the rate at epochs only. If False, it changes at every batch, and
            `multiplier` gets fractions of epochs.
        momentum_correction: scale the optimizer's momentum with the rate, which is a factor of it
            in SGD and RMSprop. Without it, old gradients keep the weight of the old rate.
        steps_per_epoch: number of steps, if not staircase; None: the number that `fit` has.
        initial_lr: the rate that is multiplied; None: the optimizer's rate when `fit` begins.

    Raises:
        InvalidArgumentError: an invalid rate or invalid epochs; positional numbers that BytePS and
            Horovod take differently.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        given = arguments_of(type(self).__name__, SCHEDULE, args, kwargs)
        multiplier, start_epoch, end_epoch = given["multiplier"], given["start_epoch"], given["end_epoch"]
        initial_lr = given["initial_lr"]
        if initial_lr is not None and (not isinstance(initial_lr, Real) or float(initial_lr) < 0):
            raise InvalidArgumentError(f"{type(self).__name__}: initial_lr is {initial_lr!r}: expected a number")
        if not callable(multiplier) and not isinstance(multiplier, Real):
            raise InvalidArgumentError(
                f"{type(self).__name__}: multiplier is {multiplier!r}: expected a number or a function of the epoch"
            )
        if end_epoch is not None and end_epoch < start_epoch:
            raise InvalidArgumentError(f"{type(self).__name__}: end_epoch {end_epoch} is before {start_epoch}")
        self.initial_lr = None if initial_lr is None else float(initial_lr)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = given["staircase"] if callable(multiplier) else True
        self.momentum_correction = given["momentum_correction"]
        self.steps_per_epoch = given["steps_per_epoch"]
        self.multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda _: multiplier
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks the optimizer and the number of steps.

        Raises:
            InvalidArgumentError: the optimizer's rate follows a schedule of its own, or the number
                of steps is not known.
        """
        optimizer = _inner(self.model.optimizer)
        if not isinstance(optimizer._learning_rate, keras.Variable):
            raise InvalidArgumentError(
                f"{type(self).__name__}: the optimizer's learning rate is a {type(optimizer._learning_rate).__name__}, "
                "which cannot be set: make the optimizer with a number"
            )
        if not self.staircase and not self._steps():
            raise InvalidArgumentError(
                f"{type(self).__name__}: the number of steps of an epoch is not known in advance: pass steps_per_epoch"
            )
        _rates_before.pop(optimizer, None)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        optimizer = _inner(self.model.optimizer)
        if optimizer not in _rates_before:  # after the broadcast: the same on all ranks
            _rates_before[optimizer] = _rate_of(optimizer)
        is_over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or is_over:
            return
        if not self.staircase:
            self._set(self.multiplier(self.current_epoch + batch / self._steps()))
        elif batch == 0:
            self._set(self.multiplier(self.current_epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = _rate_of(self.model.optimizer)

    def _steps(self) -> int:
        return int(self.steps_per_epoch or (self.params or {}).get("steps") or 0)

    def _set(self, factor: float) -> None:
        optimizer = _inner(self.model.optimizer)
        old = _rate_of(optimizer)
        new = (_rates_before[optimizer] if self.initial_lr is None else self.initial_lr) * factor
        if new == old:
            return
        optimizer.learning_rate = new
        if self.momentum_correction and old > 0 and optimizer.built and getattr(optimizer, "momentum", 0):
            # Scales the variables, since optimizer.momentum is a constant in the compiled step.
            momentums = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or ()
            for momentum in momentums:
                if momentum is not None:
                    momentum.assign(momentum * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate batch by batch from `initial_lr / size()` to `initial_lr`.

    Takes the arguments of BytePS, or those of Horovod, which begin with the rate:

        LearningRateWarmupCallback(warmup_epochs=5, momentum_correction=True, steps_per_epoch=None,
        verbose=0,
                                   initial_lr=None)
        LearningRateWarmupCallback(initial_lr, warmup_epochs=5, ...)

    Args:
        warmup_epochs: number of epochs.
        momentum_correction: see `LearningRateScheduleCallback`; so is steps_per_epoch.
        steps_per_epoch: see `momentum_correction`.
        verbose: 1 prints a line at the end of the warmup.
        initial_lr: the rate for the batches of all ranks together, usually `size()` times the rate
            for one rank; None: the optimizer's rate when `fit` begins.

    Raises:
        InvalidArgumentError: see the base class.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = arguments_of(type(self).__name__, WARMUP, args, kwargs)
        if not isinstance(given["warmup_epochs"], Real) or given["warmup_epochs"] <= 0:
            raise InvalidArgumentError(
                f"{type(self).__name__}: warmup_epochs is {given['warmup_epochs']!r}: expected more than 0"
            )
        warmup_epochs = float(given["warmup_epochs"])

        def multiplier(epoch: float) -> float:
            progress = min(1.0, (epoch + 1 / self._steps()) / warmup_epochs)  # 1 in the last batch
            return (1 + progress * (size() - 1)) / size()

        super().__init__(
            multiplier=multiplier,
            initial_lr=given["initial_lr"],
            end_epoch=given["warmup_epochs"],
            staircase=False,
            momentum_correction=given["momentum_correction"],
            steps_per_epoch=given["steps_per_epoch"],
        )
        self.verbose = given["verbose"]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and self.end_epoch is not None and epoch == -(-self.end_epoch // 1) - 1:
            rate = _rate_of(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def _inner(optimizer: Any) -> Any:
    """Returns the optimizer inside a LossScaleOptimizer, or `optimizer` itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _rate_of(optimizer: Any) -> float:
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
