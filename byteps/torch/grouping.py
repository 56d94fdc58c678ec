"""Divides parameters into buckets, so that one push_pull reduces many small gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from byteps.errors import InvalidArgumentError
from byteps.torch.options import ReducerOptions

__all__ = ["group"]

# Copying a larger gradient into a bucket costs more than a push_pull of its own.
MOST_BYTES_COPIED = 128 << 10

Tensor = torch.Tensor
Kind = tuple[torch.dtype, torch.device, bool]


def group(parameters: Sequence[Tensor], options: ReducerOptions) -> list[list[int]]:
    """Divides the positions of `parameters` into lists, as `options` say.

    Each position is in one list. The parameters of a list have the same kind, and keep their order.
    """
    if isinstance(options.groups, Sequence):
        chosen = _named_groups(parameters, options.groups)
    elif options.groups:
        total = sum(parameter.nbytes for parameter in parameters)
        share = -(-total // options.groups)
        chosen = _consecutive(parameters, options.alone, lambda filled, nbytes: filled >= share)
    elif options.bucket_bytes:
        most = min(options.bucket_bytes, MOST_BYTES_COPIED)
        alone = options.alone.union(parameter for parameter in parameters if parameter.nbytes >= most)
        chosen = _consecutive(parameters, alone, lambda filled, nbytes: filled + nbytes > options.bucket_bytes)
    else:
        chosen = [[position] for position in range(len(parameters))]
    return [alike for positions in chosen for alike in _split_by_kind(parameters, positions)]


def _named_groups(parameters: Sequence[Tensor], groups: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    positions = {parameter: position for position, parameter in enumerate(parameters)}
    chosen = []
    for number, members in enumerate(groups):
        if isinstance(members, Tensor) or not isinstance(members, Sequence):
            raise InvalidArgumentError(f"groups[{number}] is {type(members).__name__}: expected a list of parameters")
        if any(member not in positions for member in members):
            raise InvalidArgumentError(
                f"groups[{number}]: one of its {len(members)} tensors is not a parameter of the optimizer, or is in "
                "two groups"
            )
        chosen.append([positions.pop(member) for member in members])
    return chosen + [[position] for position in positions.values()]


def _consecutive(
    parameters: Sequence[Tensor], alone: frozenset[Tensor], is_full: Callable[[int, int], bool]
) -> list[list[int]]:
    """Fills one group after the other until `is_full(its bytes, the next parameter's bytes)`.

    Each kind has groups of its own, so that a parameter of another kind does not end a group early.
    """
    open_groups: dict[Kind, tuple[list[int], int]] = {}
    chosen: list[list[int]] = []
    for position, parameter in enumerate(parameters):
        if parameter in alone:
            chosen.append([position])
            continue
        kind = _kind_of(parameter)
        members, filled = open_groups.get(kind, ([], 0))
        if not members or is_full(filled, parameter.nbytes):
            members, filled = [], 0
            chosen.append(members)
        members.append(position)
        open_groups[kind] = (members, filled + parameter.nbytes)
    return chosen


def _split_by_kind(parameters: Sequence[Tensor], positions: Iterable[int]) -> list[list[int]]:
    alike: dict[Kind, list[int]] = {}
    for position in positions:
        alike.setdefault(_kind_of(parameters[position]), []).append(position)
    return list(alike.values())


def _kind_of(parameter: Tensor) -> Kind:
    """Returns what parameters of one bucket have in common. Frozen ones get no gradients."""
    return parameter.dtype, parameter.device, parameter.requires_grad
