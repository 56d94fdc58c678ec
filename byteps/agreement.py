"""Whether all ranks are about to do the same thing, before tensors that do not fit meet."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from itertools import zip_longest

from byteps.errors import InvalidArgumentError
from byteps.objects import broadcast_object
from byteps.ops import Buffer, ReduceOp, push_pull_buffer, synchronize
from byteps.runtime import current_job

__all__ = ["are_alike", "check_agreement"]


def check_agreement(caller: str, mine: Sequence[str], name: str) -> None:
    """Compares the ranks' descriptions of what they are about to do. Blocks until all ranks have called it.

    Args:
        caller: begins the message.
        mine: one line for each thing that must be alike.
        name: the same on all ranks; tells this check apart from others.

    Raises:
        InvalidArgumentError: on all ranks alike, naming two of them and the first lines that differ.
    """
    if are_alike(mine, name):
        return
    job = current_job()
    reference = broadcast_object(list(mine), 0, f"{name}.lines")
    (rank,) = _maxima([0 if list(mine) == reference else job.rank], f"{name}.other")
    theirs = broadcast_object(list(mine), rank, f"{name}.lines")
    here, there = next(pair for pair in zip_longest(reference, theirs) if pair[0] != pair[1])
    raise InvalidArgumentError(
        f"{caller}: the ranks differ: rank 0 has {here or 'nothing more'}; rank {rank} has {there or 'nothing more'}. "
        "All ranks must make the same calls in the same order, with the same parameters and arguments"
    )


def are_alike(mine: Sequence[str], name: str) -> bool:
    """Whether all ranks have the same lines. Blocks until all have called it; see `check_agreement`."""
    if current_job().size == 1:
        return True
    digest = int.from_bytes(hashlib.sha256("\n".join(mine).encode()).digest()[:7], "big")
    highest, lowest = _maxima([digest, -digest], f"{name}.digest")
    return highest == -lowest


def _maxima(numbers: list[int], name: str) -> list[int]:
    """Of each number the largest that a rank has."""
    memory = (ctypes.c_int64 * len(numbers))(*numbers)
    buffer = Buffer(ctypes.addressof(memory), ctypes.sizeof(memory), "int64", memory)
    synchronize(push_pull_buffer(buffer, buffer, name, ReduceOp.Max, 0, finish=lambda: None))
    return list(memory)
