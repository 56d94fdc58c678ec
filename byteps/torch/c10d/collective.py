"""Collectives made of push_pulls."""

from __future__ import annotations

import ctypes
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from byteps.errors import BytePSError
from byteps.handles import Handle
from byteps.ops import Buffer, ReduceOp, broadcast_buffer, push_pull_buffer
from byteps.runtime import Job
from byteps.torch.c10d.progress import Awaited, Explain, Progress
from byteps.torch.c10d.work import CollectiveWork, Group
from byteps.torch.device import device_of
from byteps.torch.tensor import own_memory, stage

__all__ = ["Collective", "as_bytes"]

Tensor = torch.Tensor


class _Part(NamedTuple):
    """A push_pull that is not started."""

    source: Buffer
    target: Buffer
    op: ReduceOp | None  # None: a broadcast
    root: int = 0

    def start(self, name: str, job: Job, number: int) -> Handle:
        source, target, op, root = self
        if op is None:
            return broadcast_buffer(target, root, name, _nothing, source=source, job=job, collective=number)
        return push_pull_buffer(source, target, name, op, 0, _nothing, job, collective=number)


class Collective:
    """One collective.

    Calls come in this order: memory and push_pulls, then `work`, then `launch`, then `begin`.
    Tensors with gaps in memory are exchanged as dense copies, and those on devices that the core
    cannot copy from as host copies.
    """

    def __init__(self, explain: Explain) -> None:
        self._explain = explain
        self._parts: list[_Part] = []
        self._copies: list[tuple[Buffer, Buffer]] = []  # (target, memory used in its place)
        self._tensor_copies: list[tuple[Tensor, Tensor]] = []  # (output, dense or host copy)
        self._handles: list[Handle] = []
        self._failure: BytePSError | None = None
        self.number = 0
        self.progress: Progress

    def source(self, tensor: Tensor) -> Buffer:
        """Returns the memory of an input, which must not change before the collective is done."""
        return _buffer(tensor)

    def target(self, tensor: Tensor) -> Buffer:
        """Returns memory for an output; its present content is not used."""
        if tensor.is_cpu and _is_dense(tensor):
            return _buffer(tensor)
        if device_of(tensor.device) is not None and _is_dense(tensor):
            return _buffer(tensor)
        memory = self.scratch(tensor)
        self._copy_back_later(tensor, memory)
        return _buffer(memory)

    def scratch(self, tensor: Tensor) -> Tensor:
        """Returns memory for a result of this shape that nobody needs."""
        place = None if device_of(tensor.device) is None else tensor.device
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=place)

    def in_place(self, tensor: Tensor) -> Buffer:
        """Returns the memory of a tensor that is input and output."""
        own = own_memory(tensor)
        if own is not None:
            return own
        dense = _dense(tensor)
        staged = stage(dense, any_dtype=True, row_major=True)
        if staged.copied or dense is not tensor:
            self._copy_back_later(tensor, staged.memory)
        return staged.buffer._replace(shape=None)

    def reduce(self, source: Buffer, target: Buffer, op: ReduceOp) -> None:
        self._parts.append(_Part(source, target, op))

    def reduce_part(self, scratch: Tensor, first: int, output: Tensor, op: ReduceOp) -> None:
        """Reduces all of `scratch`; its elements from `first` on become the output."""
        staged = stage(scratch, row_major=True)
        self._copy_back_later(output, staged.memory.view(-1)[first : first + output.numel()])
        self.reduce(staged.buffer, staged.buffer, op)

    def broadcast(self, source: Buffer, target: Buffer, root: int) -> None:
        self._parts.append(_Part(as_bytes(source), as_bytes(target), None, root))

    def work(self, outputs: Any, given_s: float, group: Group, earlier: Sequence[Awaited] = ()) -> CollectiveWork:
        """Returns the Work of the collective, which has all its push_pulls now.

        Args:
            outputs: see CollectiveWork.
            given_s: see CollectiveWork.
            group: see CollectiveWork.
            earlier: see Progress.
        """
        self._keep_apart()
        self.progress = Progress(self._explain, earlier)
        return CollectiveWork(self.progress, outputs, self._devices() or (), given_s, group)

    def launch(self, job: Job, prefix: str) -> None:
        """Starts the push_pulls. The ranks of a group launch its collectives in the same order.

        The n-th push_pulls of the ranks meet, whatever they are, and carry the collective's number.
        So ranks whose collectives differ get an error, also if their collectives consist of
        different numbers of push_pulls.
        """
        self.progress.number = self.number
        number = job.in_flight.names.next_number(prefix)
        try:
            for part in self._parts:
                name = job.in_flight.automatic_name(prefix)
                self._handles.append(part.start(name, job, number))
        except BytePSError as error:
            self._failure = self._explain(error)

    def begin(self) -> None:
        """Tells the Work about `launch`. May call callbacks, so no lock may be held.

        Raises:
            BytePSError: the push_pulls could not be started.
        """
        if self._failure is not None:
            self.progress.fail(self._failure)
            raise self._failure
        self._parts.clear()
        copy_back = self._copy_back if self._copies or self._tensor_copies else None
        self.progress.begin(self._handles, copy_back, [each for each in self._handles if each.is_on_device])

    def fail(self, error: Exception) -> None:
        """Ends a collective that was not launched."""
        self.progress.fail(error)

    def _keep_apart(self) -> None:
        """Gives all targets other memory if one overlaps memory that another push_pull uses."""
        parts = self._parts
        if (len(parts) == 1 and parts[0].source.ptr == parts[0].target.ptr) or not _overlap(parts):
            return
        for number, part in enumerate(self._parts):
            target = part.target
            place = target.owner.device if isinstance(target.owner, Tensor) else None
            memory = torch.empty(target.nbytes, dtype=torch.uint8, device=place)
            scratch = Buffer(memory.data_ptr(), target.nbytes, target.dtype, memory, device=target.device)
            self._copies.append((target, scratch))
            self._parts[number] = part._replace(target=scratch)

    def _copy_back_later(self, tensor: Tensor, memory: Tensor) -> None:
        # The copy into the output must come after what the stream still does with it.
        if memory.is_cpu and not tensor.is_cpu:
            torch.accelerator.current_stream(tensor.device).synchronize()
        self._tensor_copies.append((tensor, memory))

    def _devices(self) -> set[torch.device]:
        """Returns the devices of the outputs, except the CPU."""
        owners = [part.target.owner for part in self._parts if part.target.device is not None]
        tensors = [tensor for tensor, _ in self._tensor_copies] + [each for each in owners if isinstance(each, Tensor)]
        return {tensor.device for tensor in tensors if not tensor.is_cpu}

    def _copy_back(self) -> None:
        for handle in self._handles:
            handle.order()
        devices = {tensor.device for tensor, _ in self._tensor_copies if not tensor.is_cpu}
        for target, scratch in self._copies:
            if target.device is None:
                ctypes.memmove(target.ptr, scratch.ptr, target.nbytes)
                continue
            assert isinstance(target.owner, Tensor)
            assert isinstance(scratch.owner, Tensor)
            target.owner.view(-1).view(torch.uint8).copy_(scratch.owner)
            devices.add(target.owner.device)
        for tensor, memory in self._tensor_copies:
            tensor.detach().copy_(memory.view(tensor.dtype).view(tensor.shape))
        for device in devices:
            # Other threads and streams read the output.
            torch.accelerator.current_stream(device).synchronize()


def _overlap(parts: Sequence[_Part]) -> bool:
    """Whether a target overlaps another part, or its own source without being equal to it."""
    targets = sorted(_range(part.target) for part in parts if part.target.nbytes)
    if any(end > start for (_, end), (start, _) in pairwise(targets)):
        return True
    for part in parts:
        start, end = _range(part.source)
        first, behind = bisect_right(targets, start, key=lambda span: span[1]), bisect_left(targets, (end, 0))
        if start < end and targets[first:behind] not in ([], [_range(part.target)] if part.target.ptr == start else []):
            return True
    return False


def _range(buffer: Buffer) -> tuple[int, int]:
    return buffer.ptr, buffer.ptr + buffer.nbytes


def _buffer(tensor: Tensor) -> Buffer:
    """Returns the tensor's memory without its shape, which ranks need not have in common."""
    return own_memory(tensor) or stage(_dense(tensor), any_dtype=True, row_major=True).buffer._replace(shape=None)


def _dense(tensor: Tensor) -> Tensor:
    """Returns the tensor, or a dense copy if it has gaps and is on a device of the core's."""
    if tensor.is_cpu or device_of(tensor.device) is None:
        return tensor
    return tensor.resolve_neg().resolve_conj().contiguous()


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def as_bytes(buffer: Buffer) -> Buffer:
    """Returns the memory as a broadcast sends it: without dtype and shape."""
    return buffer._replace(dtype="uint8", shape=None)


def _nothing() -> None:
    """Does nothing: the result is in the target's memory."""
