"""Averages of metrics, such as loss and accuracy, over the samples of all ranks."""

from __future__ import annotations

import torch

from byteps.errors import InvalidArgumentError
from byteps.ops import Sum
from byteps.torch.eager import eager
from byteps.torch.ops import push_pull

__all__ = ["MetricAverage"]


class MetricAverage:
    """Collects the means of batches.

    `compute` returns their mean over all ranks, weighted by numbers of samples. Ranks may have
    different numbers of batches, also none:

        metrics = bps.MetricAverage("loss", "accuracy")
        for x, y in batches:
            metrics.update(len(x), loss=..., accuracy=...)
        print(metrics.compute()["accuracy"])
    """

    def __init__(self, *names: str) -> None:
        """Args: the metrics' names, the same on all ranks."""
        if not names or len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError(f"MetricAverage{names!r}: expected the name of each metric, once")
        self._names = names
        self.reset()

    def reset(self) -> None:
        """Forgets all samples of this rank."""
        self._sums: dict[str, float | torch.Tensor] = dict.fromkeys(self._names, 0.0)
        self._counts = dict.fromkeys(self._names, 0.0)

    def update(self, count: float = 1, /, **values: float | torch.Tensor) -> None:
        """Adds a batch of this rank.

        Args:
            count: number of its samples.
            values: mean of each metric over the batch, as a number or a tensor of one element. Does
                not wait for a tensor's device.

        Raises:
            InvalidArgumentError: an unknown metric, a negative count, a tensor of several elements.
        """
        if count < 0:
            raise InvalidArgumentError(f"MetricAverage.update: count is {count}: expected 0 or more")
        for name, value in values.items():
            if name not in self._sums:
                raise InvalidArgumentError(
                    f"MetricAverage.update: no metric '{name}': expected one of {', '.join(self._names)}"
                )
            if count:  # the mean of no samples is NaN
                self._sums[name] += _number(name, value) * count
                self._counts[name] += count

    @eager
    def compute(self) -> dict[str, float]:
        """Returns each metric's mean over all ranks, or NaN. Blocks; all ranks must call it."""
        local = [float(self._sums[name]) for name in self._names] + [self._counts[name] for name in self._names]
        name = f"byteps.MetricAverage.{','.join(self._names)}"
        totals = push_pull(torch.tensor(local, dtype=torch.float64), name=name, op=Sum).tolist()
        sums, counts = totals[: len(self._names)], totals[len(self._names) :]
        return {
            name: total / count if count else float("nan")
            for name, total, count in zip(self._names, sums, counts, strict=True)
        }


def _number(name: str, value: float | torch.Tensor) -> float | torch.Tensor:
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.numel() != 1:
        raise InvalidArgumentError(
            f"MetricAverage.update: '{name}' is a tensor of shape {list(value.shape)}: expected one element, the mean"
        )
    return value.detach().reshape(()).double()
