"""What a process knows of a process group that it is in."""

from __future__ import annotations

from dataclasses import dataclass

from torch._C._distributed_c10d import Store

from byteps.errors import BytePSError

__all__ = ["GroupInfo"]

_MAX_LISTED = 32


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """What a process knows of a group: itself, and the others."""

    store: Store  # used by this group only
    rank: int
    size: int
    timeout_s: float  # limit of the group's operations
    name: str
    global_ranks: tuple[int, ...]  # global rank of each of the group's ranks

    def explain(self, error: BytePSError) -> BytePSError:
        """Returns an error of the group's job with the global ranks added."""
        if self.global_ranks == tuple(range(self.size)):
            return error
        pairs = [f"rank {rank} is global rank {known}" for rank, known in enumerate(self.global_ranks)]
        listed = ", ".join(pairs[:_MAX_LISTED]) + (", ..." if len(pairs) > _MAX_LISTED else "")
        return type(error)(f"{error} [in process group '{self.name}' {listed}]")
