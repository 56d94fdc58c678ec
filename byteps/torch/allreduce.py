"""push_pull under Horovod's names and with its arguments.

Arguments of all functions, besides those of `byteps.torch.ops`:
    average: only without `op`.
    prescale_factor: multiplies every rank's tensor.
    postscale_factor: multiplies the result.
"""

from __future__ import annotations

from typing import cast

import torch

from byteps.errors import InvalidArgumentError
from byteps.ops import Handle, ReduceOp, average_or_op, one_call
from byteps.torch.compression import AnyCompressor, Compression
from byteps.torch.ops import push_pull
from byteps.torch.start import start_push_pull, synchronize

__all__ = ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_"]

Tensor = torch.Tensor


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """`push_pull` under Horovod's name and with its arguments."""
    before, after, reduce_op = _arguments(tensor, name, average, op, prescale_factor, postscale_factor)
    scaled = tensor if before == 1 else tensor * before
    reduced = push_pull(scaled, name=name, compression=compression, op=reduce_op)
    return reduced if after == 1 else reduced * after


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """`push_pull_inplace` under Horovod's name and with its arguments."""
    return cast(Tensor, synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor)))


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """`push_pull_async` under Horovod's name and with its arguments."""
    before, after, reduce_op = _arguments(tensor, name, average, op, prescale_factor, postscale_factor)
    scaled = tensor if before == 1 else tensor.detach() * before
    return start_push_pull(scaled, reduce_op, name, 0, in_place=scaled is not tensor, scale=after)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """`push_pull_async_inplace` under Horovod's name and with its arguments."""
    before, after, reduce_op = _arguments(tensor, name, average, op, prescale_factor, postscale_factor)
    if before != 1:
        tensor.detach().mul_(before)
    return start_push_pull(tensor, reduce_op, name, 0, in_place=True, scale=after)


def _arguments(
    tensor: Tensor, name: str | None, average: bool | None, op: ReduceOp | None, before: float, after: float
) -> tuple[float, float, ReduceOp]:
    """Returns both factors and the operation.

    Invalid ones make this call of `name` fail on all ranks.
    """
    try:
        return _factor(tensor, before), _factor(tensor, after), average_or_op(average, op, "allreduce")
    except InvalidArgumentError as error:
        with one_call(name):
            raise error from None


def _factor(tensor: Tensor, factor: float) -> float:
    """Returns the factor, as an integer for a tensor of integers."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return factor
    if not float(factor).is_integer():
        raise InvalidArgumentError(f"a tensor of {tensor.dtype} cannot be scaled by {factor}: convert it with .to()")
    return int(factor)
