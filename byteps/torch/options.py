"""Options of reducers, which users of DistributedOptimizer and the other wrappers choose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from byteps.compression import sends_as_is
from byteps.errors import InvalidArgumentError
from byteps.ops import ReduceOp, check_op
from byteps.torch.compression import AnyCompressor, Compression

__all__ = ["Groups", "Owner", "ReducerOptions", "bytes_of_megabytes", "check_passes"]

Groups = int | Sequence[Sequence[torch.Tensor]] | None
SYNC_MODES = ("auto", "backward", "step")


@dataclass(frozen=True, slots=True)
class Owner:
    """The class that uses a reducer, and what its errors advise."""

    name: str
    when_changed: str  # advice if a gradient was changed in flight
    when_repeated: str  # advice if a parameter got more gradients than expected
    when_averaged_twice: str = ""  # advice for a warning; "": no warning


@dataclass(frozen=True, slots=True)
class ReducerOptions:
    """Options of one reducer. DistributedOptimizer documents those without a comment."""

    owner: Owner
    compression: AnyCompressor = Compression.none
    op: ReduceOp = ReduceOp.Average
    sync: str = "auto"
    groups: Groups = None
    bucket_bytes: int = 0
    sparse_as_dense: bool = False
    find_unused_parameters: bool = False
    nan_check: bool = False
    alone: frozenset[torch.Tensor] = frozenset()  # parameters that must not share a bucket
    # Reuse buffers, so that a step overwrites the .grad of the one before.
    keep_buckets: bool = True

    def check(self, gradient_predivide_factor: float) -> None:
        """Raises InvalidArgumentError for invalid options and combinations."""
        check_op(self.op)
        if self.sync not in SYNC_MODES:
            raise InvalidArgumentError(f"sync is {self.sync!r}: expected one of {', '.join(map(repr, SYNC_MODES))}")
        self._check_groups()
        factor = gradient_predivide_factor
        if not (math.isfinite(factor) and factor > 0):
            raise InvalidArgumentError(f"gradient_predivide_factor is {factor!r}: expected a positive number")
        if factor != 1 and self.op is not ReduceOp.Average:
            raise InvalidArgumentError(f"gradient_predivide_factor needs op=Average, got {self.op.name}")

    def check_asynchronous(self) -> None:
        """Raises InvalidArgumentError for options that asynchronous training does not support."""
        if not sends_as_is(self.compression):
            raise InvalidArgumentError(f"{self.owner.name}: asynchronous training takes no compression")
        if self.nan_check:
            raise InvalidArgumentError(
                f"{self.owner.name}: nan_check looks at the gradients of all ranks, which asynchronous training does "
                "not exchange: use torch.autograd.detect_anomaly, or check the loss"
            )

    def _check_groups(self) -> None:
        groups, size = self.groups, self.bucket_bytes
        if isinstance(groups, bool) or not isinstance(groups, int | Sequence | None) or isinstance(groups, str):
            raise InvalidArgumentError(f"groups is {groups!r:.80}: expected a number of groups, or lists of parameters")
        if isinstance(groups, int) and groups < 0:
            raise InvalidArgumentError(f"groups is {groups}: expected 0 or more")
        if not isinstance(size, int) or size < 0:
            raise InvalidArgumentError(f"bucket_bytes is {size!r}: expected a number of bytes, or 0 for no buckets")
        if groups and size:
            raise InvalidArgumentError("groups and bucket_bytes both divide parameters into buckets: give only one")


def check_passes(passes: int) -> None:
    """Raises InvalidArgumentError unless `passes` is an integer of 1 or more."""
    if not isinstance(passes, int) or passes < 1:
        raise InvalidArgumentError(f"backward_passes_per_step is {passes!r}: expected 1 or more")


def bytes_of_megabytes(owner: Owner, megabytes: float) -> int:
    """Returns the size of a bucket in bytes, from the users' argument in MiB.

    Raises:
        InvalidArgumentError: not a positive number.
    """
    if not isinstance(megabytes, int | float) or not megabytes > 0:
        raise InvalidArgumentError(f"{owner.name}: bucket_cap_mb is {megabytes!r}: expected more than 0")
    return max(1, int(megabytes * (1 << 20)))
