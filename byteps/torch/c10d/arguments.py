"""Arguments of torch's collectives: their forms, checks, and operations of the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp as TorchOp

from byteps.errors import InvalidArgumentError
from byteps.ops import ReduceOp
from byteps.torch.tensor import DTYPE_NAMES

__all__ = [
    "CORE_OPS",
    "as_list",
    "as_lists",
    "check_dtypes",
    "check_elements",
    "check_list",
    "check_one",
    "check_parts",
    "core_op",
    "is_plain",
    "options_of",
]

Tensor = torch.Tensor
Tensors = list[Tensor]

_OPS = (  # not a dict: torch's ops have no hash
    (TorchOp.SUM, ReduceOp.Sum),
    (TorchOp.AVG, ReduceOp.Average),
    (TorchOp.MIN, ReduceOp.Min),
    (TorchOp.MAX, ReduceOp.Max),
    (TorchOp.PRODUCT, ReduceOp.Product),
)

CORE_OPS: list[tuple[object, int]] = [(theirs, ours.value) for theirs, ours in _OPS]


def core_op(op: Any, tensors: Sequence[Tensor]) -> ReduceOp | None:
    """Returns the core's operation, or None if the core cannot reduce these tensors by it."""
    for tensor in tensors:  # a loop, because a generator costs more than its checks
        if tensor.dtype not in DTYPE_NAMES or not is_plain(tensor):
            return None
    for theirs, ours in _OPS:
        if op == theirs:
            return ours
    return None


def is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def options_of(kind: Callable[[], Any], opts: Any, timeout: timedelta | None, **fields: Any) -> Any:
    """Returns `opts`, or new ones made of `fields`, which most methods also take as arguments."""
    if opts is not None and not isinstance(opts, (TorchOp, TorchOp.RedOpType, int)):
        return opts
    built = kind()
    for name, value in fields.items():
        chosen = value if opts is None else opts
        if chosen is not None:
            setattr(built, name, chosen)
    if timeout is not None:
        built.timeout = timeout
    return built


def as_list(tensors: Tensors | Tensor) -> Tensors:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def as_lists(tensors: list[Tensors] | Tensors) -> list[Tensors]:
    return [tensors] if tensors and isinstance(tensors[0], Tensor) else tensors  # type: ignore[return-value]


def check_one(what: str, role: str, given: Sequence[object], instead: str) -> None:
    if len(given) != 1:
        raise InvalidArgumentError(f"{what}: got {len(given)} {role}: expected one; call {instead}")


def check_list(what: str, role: str, given: Sequence[object], size: int) -> None:
    if len(given) != size:
        raise InvalidArgumentError(f"{what}: got {len(given)} {role}: expected one for each of the {size} ranks")


def check_dtypes(what: str, role: str, tensors: Sequence[Tensor], dtype: torch.dtype) -> None:
    for rank, tensor in enumerate(tensors):
        if tensor.dtype != dtype:
            raise InvalidArgumentError(
                f"{what}: the dtype of {role}[{rank}] is {tensor.dtype}: expected {dtype} for all"
            )


def check_elements(what: str, role: str, tensor: Tensor, other_role: str, other: Tensor) -> None:
    if tensor.numel() != other.numel() or tensor.dtype != other.dtype:
        raise InvalidArgumentError(
            f"{what}: {role} has {tensor.numel()} elements of {tensor.dtype}, and {other_role} has {other.numel()} of "
            f"{other.dtype}: expected the same number and dtype"
        )


def check_parts(what: str, role: str, whole: Tensor, part_role: str, part: Tensor, size: int) -> None:
    if whole.numel() != size * part.numel() or whole.dtype != part.dtype:
        raise InvalidArgumentError(
            f"{what}: the {role} has {whole.numel()} elements of {whole.dtype}, and the {part_role} has {part.numel()} "
            f"of {part.dtype}: expected {size} times as many, of the same dtype"
        )
