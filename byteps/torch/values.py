"""What ranks should have alike when they begin to train: weights and hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["hyperparameters_of", "sums_of"]

Tensor = torch.Tensor

# How a step is computed, which may depend on a rank's device.
_IMPLEMENTATION = ("capturable", "differentiable", "foreach", "fused")
_WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def sums_of(parameters: Sequence[Tensor]) -> list[int]:
    """A number for each parameter: the sum of its bits, as whole numbers. As fast as memory, on whatever device.

    0 for those that have no plain memory, such as a DTensor, of which each rank has another part.
    """
    sums: list[Tensor | None] = []
    for parameter in parameters:
        plain = type(parameter).__torch_dispatch__ == Tensor.__torch_dispatch__
        is_dense = parameter.layout is torch.strided and not parameter.is_quantized and not parameter.is_meta
        sums.append(_sum(parameter.detach()) if plain and is_dense and parameter.numel() else None)
    return [0 if each is None else int(each) for each in sums]


def _sum(parameter: Tensor) -> Tensor:
    flat = (parameter if parameter.is_contiguous() else parameter.contiguous()).view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    word = flat.element_size()
    bits = flat.view(_WORD[word])
    if word < 8 and bits.numel() * word % 8 == 0 and bits.data_ptr() % 8 == 0:
        bits = flat.view(torch.uint8).view(torch.int64)
    return bits.sum(dtype=torch.int64)


def hyperparameters_of(optimizer: torch.optim.Optimizer) -> list[str]:
    """A line for each scalar option of each group of parameters."""
    lines = []
    for number, group in enumerate(optimizer.param_groups):
        for key in sorted(group):
            value = _scalar(group[key])
            if key not in _IMPLEMENTATION and isinstance(value, bool | int | float | str | tuple):
                lines.append(f"{key}={value!r} in group {number}")
    return lines


def _scalar(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else None
    return tuple(map(_scalar, value)) if isinstance(value, tuple) else value
