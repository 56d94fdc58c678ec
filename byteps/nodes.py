"""Stand-ins for `byteps._core.Node` where there is no job to take part in."""

from __future__ import annotations

import ctypes
from typing import NoReturn

from byteps.errors import NotInitializedError

__all__ = ["ForkedNode", "LocalNode"]

METRICS = (
    "push_pulls",
    "push_pull_bytes",
    "push_pull_us",
    "busy_us",
    "bytes_sent",
    "bytes_received",
    "sums",
    "sum_bytes",
    "sum_us",
    "partition_factor",
    "credit_bytes",
    "plan_changes",
)


class LocalNode:
    """The only rank of a job: every push_pull is its own result, complete when it returns."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    num_servers = 0

    def __init__(self) -> None:
        self._metrics = dict.fromkeys(METRICS, 0.0)

    def declare(self, name: str, dtype: int, nbytes: int) -> None:
        """Nothing to place."""

    def push_pull(
        self, name: str, input_ptr: int, output_ptr: int, nbytes: int, dtype: int, op: int, root: int, priority: int
    ) -> int:
        if input_ptr != output_ptr:
            ctypes.memmove(output_ptr, input_ptr, nbytes)
        self._metrics["push_pulls"] += 1
        self._metrics["push_pull_bytes"] += nbytes
        return 0

    def poll(self, handle: int) -> bool:
        return True

    def wait(self, handle: int, timeout_s: float | None = None) -> None:
        """Everything is done already."""

    def barrier(self) -> None:
        """Nobody to wait for."""

    def failure(self) -> str:
        return ""

    def metrics(self) -> dict[str, float]:
        return dict(self._metrics)

    def shutdown(self) -> None:
        """Nothing to leave."""


class ForkedNode:
    """What a forked child finds in place of its parent's node: threads and connections did not come along."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __getattr__(self, name: str) -> NoReturn:
        raise NotInitializedError(
            f"this process was forked from rank {self._rank} after byteps.init(): a forked child can ask for rank and "
            "size, but cannot communicate. Communicate in the parent, or start the child with the 'spawn' method"
        )
