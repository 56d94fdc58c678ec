"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase

from byteps.errors import InvalidArgumentError
from byteps.ops import Sum
from byteps.per_job import JobNumber
from byteps.runtime import is_initialized, size
from byteps.torch.eager import eager
from byteps.torch.ops import push_pull

__all__ = ["SyncBatchNorm"]

Tensor = torch.Tensor


class SyncBatchNorm(_BatchNorm):
    """Normalizes by the mean and variance of all ranks' batches, as one process would with the
    whole batch.

    Inputs have the shape (N, C) or (N, C, ...), on any device. N may differ between ranks, and may
    be 0. In evaluation, and on one rank, it is ordinary batch normalization. All ranks must run the
    same layers forward and backward, in the same order: a rank without a batch passes an empty one,
    and uses the result in its loss.

    The constructor's arguments are those of `torch.nn.BatchNorm2d`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._number = JobNumber("SyncBatchNorm")

    def forward(self, input: Tensor) -> Tensor:
        """Returns the normalized input, in its shape and dtype."""
        if not self.training or not is_initialized() or size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        return self._forward_together(input)

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module) -> nn.Module:
        """Replaces all BatchNorm layers of the module, itself included, by SyncBatchNorm, and
        returns it.

        Parameters and buffers stay the same tensors, so that an optimizer may be made before.
        """
        if isinstance(module, _LazyNormBase):
            raise InvalidArgumentError(
                f"convert_sync_batchnorm: {type(module).__name__} does not know its size yet: run a batch through the "
                "model first"
            )
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            return cls._converted(module)
        for name, child in module.named_children():
            converted = cls.convert_sync_batchnorm(child)
            if converted is not child:
                module.add_module(name, converted)
        return module

    @classmethod
    def _converted(cls, norm: _BatchNorm) -> SyncBatchNorm:
        converted = cls(norm.num_features, norm.eps, norm.momentum, affine=False, track_running_stats=False)
        converted.affine, converted.track_running_stats = norm.affine, norm.track_running_stats
        converted._parameters.update(norm._parameters)
        converted._buffers.update(norm._buffers)
        return converted.train(norm.training)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.size(1) != self.num_features:
            raise InvalidArgumentError(
                f"SyncBatchNorm: input of shape {list(input.shape)}: expected (N, {self.num_features}, ...)"
            )

    @eager
    def _forward_together(self, input: Tensor) -> Tensor:
        name = f"SyncBatchNorm.{self._number.get()}"
        mean, variance, total = _statistics(input.detach(), name)
        if total <= 1:
            raise InvalidArgumentError(
                f"SyncBatchNorm: all ranks together have {total:.0f} value(s) per channel: training needs more than one"
            )
        self._track(mean, variance, total)
        dtype = torch.promote_types(input.dtype, torch.float32)
        mean, inverse_deviation = mean.to(dtype), (variance + self.eps).rsqrt().to(dtype)
        normalized: Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, mean, inverse_deviation, total, name
        )
        return normalized

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, total: float) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        momentum = momentum or 0.0
        unbiased = variance * (total / (total - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


def _statistics(x: Tensor, name: str) -> tuple[Tensor, Tensor, float]:
    """Returns mean and variance of each channel over all ranks, as float64 (C), and the values per
    channel.

    One push_pull of float64, whose error in E[x^2] - E[x]^2 is below the rounding of float32.
    """
    channels = x.size(1)
    values = x.numel() // channels
    sums = torch.zeros(2 * channels + 1, dtype=torch.float64)
    if values:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        variance, mean = torch.var_mean(x, dim=_all_but_channels(x), correction=0)
        mean, variance = mean.double(), variance.double()
        sums[:channels] = mean * values
        sums[channels:-1] = (variance + mean * mean) * values
        sums[-1] = values
    sums = push_pull(sums, name=f"{name}.forward", op=Sum)
    total = float(sums[-1])
    if not total:
        return sums[:channels], sums[channels:-1], total
    mean = sums[:channels] / total
    variance = (sums[channels:-1] / total - mean * mean).clamp_(min=0)
    return mean.to(x.device), variance.to(x.device), total


class _Normalize(torch.autograd.Function):
    """y = (x - mean) * inverse_deviation * weight + bias; mean and deviation are functions of all
    ranks' x.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        inverse_deviation: Tensor,
        total: float,
        name: str,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse_deviation)
        ctx.total, ctx.name = total, name
        scale = inverse_deviation if weight is None else inverse_deviation * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        return (x * _per_channel(scale, x) + _per_channel(shift, x)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse_deviation = ctx.saved_tensors
        grad = grads[0].to(mean.dtype)
        normalized = (x - _per_channel(mean, x)) * _per_channel(inverse_deviation, x)
        dims = _all_but_channels(x)
        own = torch.stack(((grad * normalized).sum(dims), grad.sum(dims)))  # d weight, d bias
        grad_x = None
        if ctx.needs_input_grad[0]:
            means = push_pull(own.double(), name=f"{ctx.name}.backward", op=Sum).div_(ctx.total).to(grad.dtype)
            scale = inverse_deviation if weight is None else inverse_deviation * weight
            centered = grad - _per_channel(means[1], x) - normalized * _per_channel(means[0], x)
            grad_x = (centered * _per_channel(scale, x)).to(x.dtype)
        grad_weight = own[0].to(weight.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = own[1].to(mean.dtype if weight is None else weight.dtype) if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None, None, None, None


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *(1 for _ in range(x.dim() - 2)))
