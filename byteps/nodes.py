"""The core's node as Python sees it, and replacements for processes without other ranks to talk to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from byteps import _core
from byteps.errors import InvalidArgumentError, NotInitializedError

__all__ = ["ForkedNode", "LocalNode", "Node", "forked_from"]

SUM, SEED, ACCUMULATE = (_core.OP_CODES[op] for op in ("sum", "seed", "accumulate"))
_ITEM_BYTES = {code: _core.DTYPE_BYTES[name] for name, code in _core.DTYPE_CODES.items()}


class Node(Protocol):
    """What this package uses of `byteps._core.JobNode`, documented there."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def local_ranks(self) -> Sequence[tuple[int, int]]: ...
    def declare(self, name: str, dtype: int, nbytes: int) -> None: ...
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
        staleness: int,
        shape: Sequence[int] | None,
        order: Sequence[int],
        collective: int,
        step: int,
        transfer: _core.Transfer | None = None,
    ) -> int: ...
    def push_pull_and_wait(
        self,
        name: str,
        owner: object,
        memory: int,
        nbytes: int,
        dtype: int,
        op: int,
        root: int,
        priority: int,
        shape: Sequence[int] | None,
        collective: int,
        timeout_s: float | None,
        keep: Callable[[str, object, int], object],
    ) -> object: ...
    def refuse(self, name: str, why: str, step: int) -> None: ...
    def poll(self, handle: int) -> bool: ...
    def wait(self, handle: int, timeout_s: float | None = None) -> None: ...
    def announce(self, handle: int) -> None: ...
    def next_done(self) -> int | None: ...
    def barrier(self) -> None: ...
    def failure(self) -> str: ...
    def metrics(self) -> dict[str, float]: ...
    def offer_to_c(self) -> None: ...
    def shutdown(self, cause: str = "", after: str = "") -> None: ...


class LocalNode:
    """The only rank of a job: every push_pull is complete when it returns."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    local_ranks = ((0, 1),)
    num_servers = 0

    def __init__(self) -> None:
        self._metrics = dict.fromkeys(_core.METRICS, 0.0)
        # Parameters of asynchronous training, by name: data type and value.
        self._parameters: dict[str, tuple[int, ctypes.Array[ctypes.c_char]]] = {}
        self._metrics_of_c: Callable[[], dict[str, float]] = dict

    def offer_to_c(self) -> None:
        """Makes the core's C functions (csrc/c_api/) act for this rank and count in its metrics."""
        self._metrics_of_c = _core.enter_c_job_alone()

    def declare(self, name: str, dtype: int, nbytes: int) -> None:
        """Does nothing: there is no placement."""

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
        transfer: _core.Transfer | None = None,
    ) -> int:
        if op in (SEED, ACCUMULATE):
            input_ptr = self._update_parameter(name, input_ptr, nbytes, dtype, op)
        if input_ptr != output_ptr and transfer is not None:
            transfer.copy(output_ptr, input_ptr, nbytes)
        elif input_ptr != output_ptr:
            ctypes.memmove(output_ptr, input_ptr, nbytes)
        self._metrics["push_pulls"] += 1
        self._metrics["push_pull_bytes"] += nbytes
        return 0

    def push_pull_and_wait(
        self,
        name: str,
        owner: object,
        memory: int,
        nbytes: int,
        dtype: int,
        op: int,
        root: int,
        priority: int,
        shape: Sequence[int] | None,
        collective: int,
        timeout_s: float | None,
        keep: Callable[[str, object, int], object],
    ) -> None:
        self.push_pull(name, memory, memory, nbytes, dtype, op, root, priority)

    def refuse(self, name: str, why: str, step: int = 0) -> None:
        """Does nothing: no other rank waits for it."""

    def _update_parameter(self, name: str, input_ptr: int, nbytes: int, dtype: int, op: int) -> int:
        """Adds the input to the parameter, or seeds it. Returns the address of its value."""
        if name not in self._parameters:
            if op == ACCUMULATE:
                raise InvalidArgumentError(f"accumulate of '{name}' before it was seeded")
            self._parameters[name] = (dtype, ctypes.create_string_buffer(nbytes))
            ctypes.memmove(self._parameters[name][1], input_ptr, nbytes)
        held_dtype, value = self._parameters[name]
        if (held_dtype, len(value)) != (dtype, nbytes):
            raise InvalidArgumentError(
                f"'{name}' is held as {len(value)} bytes of data type {held_dtype}: expected the same, got {nbytes} "
                f"bytes of data type {dtype}"
            )
        address = ctypes.addressof(value)
        if op == ACCUMULATE:
            _core.reduce_n(address, [address, input_ptr], nbytes // _ITEM_BYTES[dtype], dtype, SUM)
        return address

    def poll(self, handle: int) -> bool:
        return True

    def wait(self, handle: int, timeout_s: float | None = None) -> None:
        """Does nothing: every push_pull is complete when it returns."""

    def announce(self, handle: int) -> None:
        """Never called, since no handle of this node is ever in flight."""

    def next_done(self) -> int | None:
        return None

    def barrier(self) -> None:
        """Does nothing: there are no other ranks."""

    def failure(self) -> str:
        return ""

    def metrics(self) -> dict[str, float]:
        of_c = self._metrics_of_c()
        return {name: value + of_c.get(name, 0.0) for name, value in self._metrics.items()}

    def shutdown(self, cause: str = "", after: str = "") -> None:
        """Does nothing: there is no job to leave."""


class ForkedNode:
    """Replaces the parent's node in a forked child, which has no threads and connections of it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __getattr__(self, name: str) -> NoReturn:
        raise NotInitializedError(forked_from(self._rank))


def forked_from(rank: int) -> str:
    """Returns the error message for a process forked from that rank."""
    return (
        f"this process was forked from rank {rank} after byteps.init(): a forked child can ask for rank and size, but "
        "cannot communicate. Communicate in the parent, or start the child with the 'spawn' method"
    )
