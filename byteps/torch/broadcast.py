"""Broadcasts of models and optimizers, which make all ranks equal before training."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from byteps.agreement import check_agreement
from byteps.errors import ArgumentTypeError, InvalidArgumentError
from byteps.objects import broadcast_object
from byteps.ops import check_root
from byteps.runtime import rank, size
from byteps.torch.ops import broadcast_async_
from byteps.torch.start import GroupHandle, synchronize

__all__ = ["broadcast_optimizer_state", "broadcast_parameters", "is_model"]

Named = tuple[str, torch.Tensor]


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[Named | torch.Tensor], root_rank: int, prefix: str = "Parameter."
) -> None:
    """Replaces the tensors by those of rank `root_rank`, in place, all at once. Blocks.

    Args:
        params: `model.state_dict()`, `model.named_parameters()`, or a list of tensors, of any
            dtype. The order of named ones may differ between ranks.
        root_rank: the rank whose tensors all ranks get.
        prefix: of the push_pulls' names.

    Raises:
        InvalidArgumentError: an item is not a tensor (use `broadcast_object` for it). On all ranks:
            their tensors differ in name, dtype or shape.
    """
    check_root(root_rank)
    named = _named(params)
    for name, value in named:
        if not isinstance(value, torch.Tensor):
            raise InvalidArgumentError(
                f"broadcast_parameters: '{name}' is {type(value).__name__}: expected a tensor; broadcast_object takes "
                "everything else"
            )
    lines = sorted(f"'{name}' of {tensor.dtype} {list(tensor.shape)}" for name, tensor in named)
    check_agreement("broadcast_parameters", lines, f"{prefix}agreement")
    _broadcast_all(named, root_rank, prefix)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    prefix: str | torch.nn.Module | None = "Parameter.",
    *,
    model: torch.nn.Module | None = None,
) -> None:
    """Replaces the optimizer's state and options, such as the learning rate, by rank `root_rank`'s.

    Blocks; all ranks must call it. Only rank `root_rank` needs to have state, for example from a
    checkpoint: no step is made to create it. As for `load_state_dict`, the optimizers must have the
    same groups of parameters.

    Args:
        optimizer: any optimizer, wrapped by DistributedOptimizer or not.
        root_rank: the rank whose state all ranks get.
        prefix: of the push_pulls' names. Horovod has `model` in this position.
        model: unused; accepted for Horovod's scripts.
    """
    check_root(root_rank)
    if not hasattr(optimizer, "load_state_dict") or not hasattr(optimizer, "param_groups"):
        raise ArgumentTypeError(
            f"broadcast_optimizer_state: expected an optimizer, got {type(optimizer).__name__}; for a model call "
            "broadcast_parameters(model.state_dict(), root_rank)"
        )
    prefix = prefix if isinstance(prefix, str) else "Parameter."
    if size() == 1:
        return
    is_root = rank() == root_rank
    description, tensors = _describe(optimizer.state_dict()) if is_root else (b"", [])
    description = broadcast_object(description, root_rank)
    if not is_root:
        state, tensors = _rebuild(description)
    _broadcast_all([(f"optimizer_state.{index}", tensor) for index, tensor in enumerate(tensors)], root_rank, prefix)
    if not is_root:
        optimizer.load_state_dict(state)


def is_model(value: object) -> bool:
    """Whether `value` is a model, and not a ParameterList or ParameterDict."""
    containers = torch.nn.ParameterList | torch.nn.ParameterDict
    return isinstance(value, torch.nn.Module) and not isinstance(value, containers)


def _named(params: Mapping[str, torch.Tensor] | Iterable[Named | torch.Tensor]) -> list[Named]:
    if isinstance(params, Mapping):
        return list(params.items())
    if is_model(params):
        raise ArgumentTypeError(
            f"broadcast_parameters: {type(params).__name__} given: expected its parameters: "
            "broadcast_parameters(model.state_dict(), root_rank)"
        )
    if isinstance(params, torch.optim.Optimizer):
        raise ArgumentTypeError(
            f"broadcast_parameters: {type(params).__name__} is an optimizer: call broadcast_optimizer_state(optimizer, "
            "root_rank), and broadcast_parameters(model.state_dict(), root_rank) for the model"
        )
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise ArgumentTypeError(
            f"broadcast_parameters: {type(params).__name__} given: expected a state_dict, named_parameters() or a list"
        )
    return [item if isinstance(item, tuple) else (str(index), item) for index, item in enumerate(params)]


def _broadcast_all(named: list[Named], root_rank: int, prefix: str) -> None:
    # Dtype and size, which are the same on all ranks, are part of the name: several models may have
    # tensors of the same name, and a name is bound to the dtype of its first push_pull.
    handles = [
        broadcast_async_(tensor, root_rank, f"{prefix}{name}[{tensor.dtype},{tensor.nbytes}]") for name, tensor in named
    ]
    synchronize(GroupHandle(handles))


class _Describer(pickle.Pickler):
    """Pickles a state without its tensors, whose bytes are broadcast separately, without a copy."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors

    def persistent_id(self, obj: Any) -> object:
        if not isinstance(obj, torch.Tensor):
            return None
        self._tensors.append(obj)
        return obj.dtype, tuple(obj.shape), obj.device.type


class _Rebuilder(pickle.Unpickler):
    """Unpickles a state with empty tensors where `_Describer` has left tensors out."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []

    def persistent_load(self, pid: Any) -> torch.Tensor:
        dtype, shape, device = pid
        self.tensors.append(torch.empty(shape, dtype=dtype, device=device))
        return self.tensors[-1]


def _describe(state: dict[str, Any]) -> tuple[bytes, list[torch.Tensor]]:
    tensors: list[torch.Tensor] = []
    file = io.BytesIO()
    _Describer(file, tensors).dump(state)
    return file.getvalue(), tensors


def _rebuild(description: bytes) -> tuple[dict[str, Any], list[torch.Tensor]]:
    rebuilder = _Rebuilder(io.BytesIO(description))
    return rebuilder.load(), rebuilder.tensors
