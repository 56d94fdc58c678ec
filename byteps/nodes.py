"""Stand-ins for `byteps._core.Node` where there is no job to take part in."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import NoReturn

from byteps import _core
from byteps.errors import InvalidArgumentError, NotInitializedError

__all__ = ["ForkedNode", "LocalNode", "forked_from"]

SUM, SEED, ACCUMULATE = (_core.OP_CODES[op] for op in ("sum", "seed", "accumulate"))
_ITEM_BYTES = {code: int(re.sub("[a-z]", "", name)) // 8 for name, code in _core.DTYPE_CODES.items()}
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
    "rdma_registrations",
    "rdma_regions",
    "rdma_bytes",
)


class LocalNode:
    """The only rank of a job: every push_pull is complete when it returns, and its own result unless it is kept."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    places = ((0, 1),)
    num_servers = 0

    def __init__(self) -> None:
        self._metrics = dict.fromkeys(METRICS, 0.0)
        self._kept: dict[str, tuple[int, ctypes.Array[ctypes.c_char]]] = {}  # data type and value
        self._from_c: _core.AloneMetrics | None = None

    def offer_to_c(self) -> None:
        """From now on the C functions of the core (csrc/c_api/) speak for this rank; its metrics count that, too."""
        self._from_c = _core.enter_c_job_alone()

    def declare(self, name: str, dtype: int, nbytes: int) -> None:
        """Nothing to place."""

    def push_pull(
        self,
        name: str,
        input_ptr: int,
        output_ptr: int,
        nbytes: int,
        dtype: int,
        op: int,
        root: int,
        priority: int,
        staleness: int = 0,
        shape: Sequence[int] | None = None,
        order: Sequence[int] = (),
        collective: int = -1,
        step: int = 0,
    ) -> int:
        if op in (SEED, ACCUMULATE):
            input_ptr = self._keep(name, input_ptr, nbytes, dtype, op)
        if input_ptr != output_ptr:
            ctypes.memmove(output_ptr, input_ptr, nbytes)
        self._metrics["push_pulls"] += 1
        self._metrics["push_pull_bytes"] += nbytes
        return 0

    def refuse(self, name: str, why: str, step: int = 0) -> None:
        """Nobody waits for it."""

    def _keep(self, name: str, input_ptr: int, nbytes: int, dtype: int, op: int) -> int:
        """Where the tensor's value is, with the input in it."""
        if name not in self._kept:
            if op == ACCUMULATE:
                raise InvalidArgumentError(f"accumulate of '{name}' before it was seeded")
            self._kept[name] = (dtype, ctypes.create_string_buffer(nbytes))
            ctypes.memmove(self._kept[name][1], input_ptr, nbytes)
        kept_dtype, kept = self._kept[name]
        if (kept_dtype, len(kept)) != (dtype, nbytes):
            raise InvalidArgumentError(
                f"'{name}' is kept as {len(kept)} bytes of data type {kept_dtype}: expected the same, got {nbytes} "
                f"bytes of data type {dtype}"
            )
        address = ctypes.addressof(kept)
        if op == ACCUMULATE:
            _core.reduce_n(address, [address, input_ptr], nbytes // _ITEM_BYTES[dtype], dtype, SUM)
        return address

    def poll(self, handle: int) -> bool:
        return True

    def wait(self, handle: int, timeout_s: float | None = None) -> None:
        """Everything is done already."""

    def announce(self, handle: int) -> None:
        """Never called: no handle of this node is ever in flight."""

    def next_done(self) -> int | None:
        return None

    def barrier(self) -> None:
        """Nobody to wait for."""

    def failure(self) -> str:
        return ""

    def metrics(self) -> dict[str, float]:
        metrics = dict(self._metrics)
        if self._from_c is not None:
            metrics["push_pulls"] += self._from_c.push_pulls
            metrics["push_pull_bytes"] += self._from_c.push_pull_bytes
        return metrics

    def shutdown(self, cause: str = "", after: str = "") -> None:
        """Nothing to leave."""


class ForkedNode:
    """What a forked child finds in place of its parent's node: threads and connections did not come along."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __getattr__(self, name: str) -> NoReturn:
        raise NotInitializedError(forked_from(self._rank))


def forked_from(rank: int) -> str:
    """Why a process forked from that rank cannot communicate."""
    return (
        f"this process was forked from rank {rank} after byteps.init(): a forked child can ask for rank and size, but "
        "cannot communicate. Communicate in the parent, or start the child with the 'spawn' method"
    )
