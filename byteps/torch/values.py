"""What ranks compare before they train: parameters, weights and hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from byteps.torch.tensor import memory_order

__all__ = ["descriptions_of", "hyperparameters_of", "sums_of"]

Tensor = torch.Tensor

# Options that choose an implementation of the step; they may depend on a rank's device.
_IMPLEMENTATION = ("capturable", "differentiable", "foreach", "fused")
_WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def descriptions_of(groups: Iterable[Sequence[Tensor]], names: Mapping[Tensor, str]) -> list[str]:
    """Returns sorted lines, one for each group: ranks may have groups in different orders."""
    lines = []
    for members in groups:
        described = []
        for parameter in members:
            memory = memory_order(parameter)
            order = "" if memory is None else f" in memory order {memory}"
            frozen = "" if parameter.requires_grad else ", frozen"
            described.append(f"'{names[parameter]}' of {parameter.dtype} {list(parameter.shape)}{order}{frozen}")
        lines.append(" with ".join(described))
    return sorted(lines)


@torch.no_grad()
def sums_of(parameters: Sequence[Tensor]) -> list[int]:
    """Returns the sum of each parameter's bits, as integers, at the speed of its device's memory.

    0 for parameters without plain memory, such as a DTensor, of which each rank has another part.
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
    """Returns a line for each scalar option of each group of parameters."""
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
