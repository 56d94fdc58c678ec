"""Learning rates for large batches: Goyal et al. 2017, "Accurate, Large Minibatch SGD", sections
2.1 and 2.2.
"""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LRScheduler

from byteps.errors import InvalidArgumentError
from byteps.runtime import size

__all__ = ["GradualWarmup"]


class GradualWarmup(LRScheduler):
    """Raises the learning rate from that of one rank to that of all ranks, in equal steps.

    The optimizer is made with the learning rate of one rank. With k ranks the batch is k times as
    large, and so the learning rate should be (linear scaling rule); but not at once, because
    weights change too fast at first. This scheduler multiplies the rate, so it can be combined with
    schedulers that multiply, too, such as MultiStepLR and ExponentialLR: call `step` of both.
    Schedulers that compute the rate anew (LambdaLR, OneCycleLR, CosineAnnealingLR) have to follow
    it in a SequentialLR.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, warmup_steps: int, scale: float | None = None, last_epoch: int = -1
    ) -> None:
        """Makes the scheduler; the learning rate does not change before its first `step`, unless
        `warmup_steps` is 0.

        Args:
            optimizer: of any class, wrapped by byteps or not.
            warmup_steps: number of calls of `step` until the full learning rate. The paper warms up
                for five epochs.
            scale: the full learning rate divided by the initial one. None: `size()`.
            last_epoch: see torch's schedulers; -1 begins.

        Raises:
            InvalidArgumentError: an invalid number.
            NotInitializedError: there is no `scale`, and `init` was not called.
        """
        if not isinstance(warmup_steps, int) or warmup_steps < 0:
            raise InvalidArgumentError(f"GradualWarmup: warmup_steps is {warmup_steps!r}: expected 0 or more")
        self.warmup_steps = warmup_steps
        self.scale = float(size() if scale is None else scale)
        if self.scale <= 0:
            raise InvalidArgumentError(f"GradualWarmup: scale is {scale!r}: expected more than 0")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | torch.Tensor]:
        """Returns the next learning rate of each group. Called by `step`."""
        ratio = self._factor(self.last_epoch)
        if self.last_epoch > 0:
            # The checkpoint has the rate of this step.
            resumed = getattr(self, "_is_initial", False)
            ratio = 1.0 if resumed else ratio / self._factor(self.last_epoch - 1)
        return [group["lr"] * ratio for group in self.optimizer.param_groups]

    def _get_closed_form_lr(self) -> list[float | torch.Tensor]:
        return [base * self._factor(self.last_epoch) for base in self.base_lrs]

    def _factor(self, step: int) -> float:
        progress = min(step / self.warmup_steps, 1.0) if self.warmup_steps else 1.0
        return 1.0 + (self.scale - 1.0) * progress
