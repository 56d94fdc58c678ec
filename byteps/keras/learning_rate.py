"""The learning rate of large batches: Goyal et al. 2017, "Accurate, Large Minibatch SGD", sections 2.1 to 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from byteps.errors import InvalidArgumentError
from byteps.runtime import size

__all__ = ["LearningRateScheduleCallback", "LearningRateWarmupCallback"]


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` from `start_epoch` until before `end_epoch`.

    Outside of them it leaves the rate alone, so that several of them can follow each other.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: float = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Makes it.

        Args:
            initial_lr: what is multiplied.
            multiplier: a number, or a function of the epoch.
            start_epoch: the first epoch, from 0.
            end_epoch: the first epoch that it leaves alone again; None: none.
            staircase: the rate changes with epochs only; else with every batch, and `multiplier` gets fractions of
                epochs.
            momentum_correction: scale the optimizer's momentum with the rate, which is a factor of it in SGD and
                RMSprop. Without it, old gradients would keep the weight that they had at the old rate.
            steps_per_epoch: if not staircase; None: as many as `fit` has.

        Raises:
            InvalidArgumentError: not a rate, or epochs that make no sense.
        """
        super().__init__()
        if not isinstance(initial_lr, int | float) or initial_lr < 0:
            raise InvalidArgumentError(f"{type(self).__name__}: initial_lr is {initial_lr!r}: expected a number")
        if end_epoch is not None and end_epoch < start_epoch:
            raise InvalidArgumentError(f"{type(self).__name__}: end_epoch {end_epoch} is before {start_epoch}")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase if callable(multiplier) else True
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier = multiplier if callable(multiplier) else lambda _: multiplier
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks what can be known now.

        Raises:
            InvalidArgumentError: the rate of the optimizer follows a schedule of its own; the steps are not known.
        """
        optimizer = _inner(self.model.optimizer)
        if not isinstance(optimizer._learning_rate, keras.Variable):
            raise InvalidArgumentError(
                f"{type(self).__name__}: the optimizer's learning rate is a {type(optimizer._learning_rate).__name__}, "
                "which cannot be set: make the optimizer with a number"
            )
        if not self.staircase and not self._steps():
            raise InvalidArgumentError(
                f"{type(self).__name__}: how many steps an epoch has is not known before it ends: pass steps_per_epoch"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        is_over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or is_over:
            return
        if not self.staircase:
            self._set(self.multiplier(self.current_epoch + batch / self._steps()))
        elif batch == 0:
            self._set(self.multiplier(self.current_epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _steps(self) -> int:
        return int(self.steps_per_epoch or (self.params or {}).get("steps") or 0)

    def _set(self, factor: float) -> None:
        optimizer = _inner(self.model.optimizer)
        old = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        new = self.initial_lr * factor
        if new == old:
            return
        optimizer.learning_rate = new
        if self.momentum_correction and old > 0 and optimizer.built and getattr(optimizer, "momentum", 0):
            # Not optimizer.momentum: that is a constant of the compiled step.
            momentums = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or ()
            for momentum in momentums:
                if momentum is not None:
                    momentum.assign(momentum * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate batch by batch from `initial_lr / size()`, what suits one rank, to `initial_lr`."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Makes it.

        Args:
            initial_lr: the rate for all ranks' batches together, usually `size()` times that of one rank.
            warmup_epochs: how long it takes.
            momentum_correction: see `LearningRateScheduleCallback`; so is steps_per_epoch.
            steps_per_epoch: see `momentum_correction`.
            verbose: 1 tells when it is done.
        """

        def multiplier(epoch: float) -> float:
            progress = min(1.0, (epoch + 1 / self._steps()) / warmup_epochs)  # 1 in the last batch
            return (1 + progress * (size() - 1)) / size()

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and self.end_epoch is not None and epoch == -(-self.end_epoch // 1) - 1:
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def _inner(optimizer: Any) -> Any:
    """The optimizer that has the learning rate and the momentum: not a LossScaleOptimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)
