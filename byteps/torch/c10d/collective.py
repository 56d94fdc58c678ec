"""Collectives as push_pulls of a job."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from byteps.errors import BytePSError
from byteps.handles import Handle
from byteps.ops import Buffer, ReduceOp, broadcast_buffer, push_pull_buffer
from byteps.torch.c10d.channel import Channel
from byteps.torch.c10d.work import HandlesWork
from byteps.torch.tensor import stage

__all__ = ["Collective"]

Tensor = torch.Tensor


class Collective:
    """One collective: first the memory that takes part, then the push_pulls, then `start`.

    Tensors of other devices and with gaps take part as host copies.
    """

    def __init__(self, channel: Channel) -> None:
        self._job = channel.job
        self._prefix = channel.prefix
        self._sizes = channel.sizes
        self._explain = channel.explain
        self._handles: list[Handle] = []
        self._paddings: list[tuple[Buffer, Buffer]] = []  # (target, longer memory in its place)
        self._landings: list[tuple[Tensor, Tensor]] = []  # (output, host copy)

    def source(self, tensor: Tensor) -> Buffer:
        """The elements of an input, which must not change before the collective is done."""
        return _buffer(tensor)

    def target(self, tensor: Tensor) -> Buffer:
        """Memory for the elements of an output, whose present ones do not matter."""
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
            return _buffer(tensor)
        memory = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._land(tensor, memory)
        return _buffer(memory)

    def in_place(self, tensor: Tensor) -> Buffer:
        """A tensor's elements, as input and output."""
        staged = stage(tensor, any_dtype=True, row_major=True)
        if staged.copied:
            self._land(tensor, staged.memory)
        return staged.buffer

    def reduce(self, source: Buffer, target: Buffer, op: ReduceOp) -> None:
        self._add(
            f"{target.dtype}.{op.name}",
            source,
            target,
            lambda source, target, name: push_pull_buffer(source, target, name, op, 0, _nothing, self._job),
        )

    def reduce_part(self, scratch: Tensor, first: int, output: Tensor, op: ReduceOp) -> None:
        """Reduces all of `scratch`, whose elements from `first` on become the output."""
        staged = stage(scratch, row_major=True)
        self._land(output, staged.memory.view(-1)[first : first + output.numel()])
        self.reduce(staged.buffer, staged.buffer, op)

    def broadcast(self, source: Buffer, target: Buffer, root: int) -> None:
        self._add(
            "bytes",
            source._replace(dtype="uint8"),
            target._replace(dtype="uint8"),
            lambda source, target, name: broadcast_buffer(target, root, name, _nothing, source=source, job=self._job),
        )

    def start(self, outputs: list[Tensor], limit_s: float) -> HandlesWork:
        """The Work of what was asked for above."""
        copy_back = self._copy_back if self._landings or self._paddings else None
        return HandlesWork(self._handles, outputs, copy_back, self._devices(), limit_s, self._explain)

    def _add(self, kind: str, source: Buffer, target: Buffer, start: Callable[[Buffer, Buffer, str], Handle]) -> None:
        nbytes = self._sizes.padded(kind, target.nbytes)
        if nbytes > target.nbytes:
            source = self._pad(source, target, nbytes)
            target = source
        try:
            name = self._job.in_flight.automatic_name(f"{self._prefix}.{kind}.{nbytes}")
            self._handles.append(start(source, target, name))
        except BytePSError as error:
            raise self._explain(error) from None

    def _pad(self, source: Buffer, target: Buffer, nbytes: int) -> Buffer:
        """Memory of that size in the place of both."""
        memory = torch.zeros(nbytes, dtype=torch.uint8)
        ctypes.memmove(memory.data_ptr(), source.ptr, source.nbytes)
        padded = Buffer(memory.data_ptr(), nbytes, target.dtype, memory)
        self._paddings.append((target, padded))
        return padded

    def _land(self, tensor: Tensor, memory: Tensor) -> None:
        if tensor.is_cuda:  # what the stream still has to do with the output must not come after the copy into it
            torch.cuda.current_stream(tensor.device).synchronize()
        self._landings.append((tensor, memory))

    def _devices(self) -> set[torch.device]:
        return {tensor.device for tensor, _ in self._landings if tensor.is_cuda}

    def _copy_back(self) -> None:
        for target, padded in self._paddings:  # first: their targets may be host copies
            ctypes.memmove(target.ptr, padded.ptr, target.nbytes)
        for tensor, memory in self._landings:
            tensor.detach().copy_(memory.view(tensor.dtype).view(tensor.shape))
        for device in self._devices():
            torch.cuda.current_stream(device).synchronize()  # other threads and streams read the output, too


def _buffer(tensor: Tensor) -> Buffer:
    return stage(tensor, any_dtype=True, row_major=True).buffer


def _nothing() -> None:
    """The result of a push_pull is in its memory; nobody calls `synchronize`."""
