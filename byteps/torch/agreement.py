"""Whether all ranks are about to do the same thing, before tensors that do not fit meet."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest

import torch

from byteps.errors import InvalidArgumentError
from byteps.objects import broadcast_object
from byteps.ops import ReduceOp
from byteps.runtime import current_job
from byteps.torch.ops import push_pull_inplace

__all__ = ["check_agreement"]


def check_agreement(caller: str, mine: Sequence[str], name: str) -> None:
    """Compares the ranks' descriptions of what they are about to do. Blocks until all ranks have called it.

    Args:
        caller: begins the message.
        mine: one line for each thing that must be alike.
        name: the same on all ranks; tells this check apart from others.

    Raises:
        InvalidArgumentError: on all ranks alike, naming two of them and the first lines that differ.
    """
    job = current_job()
    if job.size == 1:
        return
    digest = int.from_bytes(hashlib.sha256("\n".join(mine).encode()).digest()[:7], "big")
    bounds = torch.tensor([digest, -digest])
    push_pull_inplace(bounds, name=f"{name}.digest", op=ReduceOp.Max)
    if bounds[0] == -bounds[1]:
        return
    reference = broadcast_object(list(mine), 0, f"{name}.lines")
    other = torch.tensor([0 if list(mine) == reference else job.rank])
    push_pull_inplace(other, name=f"{name}.other", op=ReduceOp.Max)
    rank = int(other)
    theirs = broadcast_object(list(mine), rank, f"{name}.lines")
    here, there = next(pair for pair in zip_longest(reference, theirs) if pair[0] != pair[1])
    raise InvalidArgumentError(
        f"{caller}: the ranks differ: rank 0 has {here or 'nothing more'}; rank {rank} has {there or 'nothing more'}. "
        "All ranks must make the same calls in the same order, with the same parameters and arguments"
    )
