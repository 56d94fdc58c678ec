"""Many gradients in one push_pull."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import attrgetter, is_

import torch

from byteps.errors import InvalidArgumentError
from byteps.handles import InFlight
from byteps.torch.bucket import Bucket, Gradient, changed_in_flight, check_dtype
from byteps.torch.ops import start_push_pull
from byteps.torch.options import ReducerOptions
from byteps.torch.tensor import memory_order, memory_that_stays

__all__ = ["FusedBucket"]

Tensor = torch.Tensor


class FusedBucket(Bucket):
    """Gradients of one dtype and device, side by side in one buffer.

    From the first `send` on, each parameter's .grad is a view of the buffer. Where it still is at the next `send`
    (zero_grad(set_to_none=False)) nothing is copied; otherwise each gradient is copied once: into the same buffer, or
    into a new one if `options.keep_buckets` is False.
    """

    __slots__ = ("bound_dtype", "buffer", "ctx", "layout", "pointers", "version", "views", "wire_name")

    def __init__(self, parameters: Sequence[Tensor], gradients: Sequence[Gradient], options: ReducerOptions) -> None:
        super().__init__(parameters, gradients, options)
        self.buffer: Tensor | None = None
        self.layout: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []  # shape, strides and offset of each view
        self.views: list[Tensor] = []
        self.pointers: list[int] = []  # of the views
        self.bound_dtype: torch.dtype | None = None  # that the ranks know the name with
        self.wire_name = ""
        self.version = 0
        self.ctx: object = None  # what the compression wants back

    def may_go(self) -> bool:
        # A parameter that was unfrozen after `expect` is not counted in `missing`.
        return all(
            gradient.left <= 0 or not parameter.requires_grad
            for parameter, gradient in zip(self.parameters, self.gradients, strict=True)
        )

    def rename(self, before: str, prefix: str) -> None:
        super().rename(before, prefix)
        self.bound_dtype = None
        if self.layout:
            self._lay_out()

    def wire_names(self) -> Sequence[str]:
        if not self.layout:
            self._lay_out()
        return (self.wire_name,)

    @torch.no_grad()
    def send(self, in_flight: InFlight) -> None:
        self._check_dtypes()
        grads = [parameter.grad for parameter in self.parameters]
        # Module.to() gives .grad, which is a view, other memory.
        moved = [view.data_ptr() for view in self.views] != self.pointers
        if moved or not self.views:
            self._lay_out()
        if moved or not self.views or not all(map(is_, grads, self.views)):
            self._fill(grads, anew=moved or not self.options.keep_buckets)
        assert self.buffer is not None
        wire, self.ctx = self.options.compression.compress(self.buffer)
        self.handle = start_push_pull(
            wire, self.options.op, self.wire_name, self.priority, in_place=True, step=self.step
        )
        self.version = self.buffer._version

    def is_in_place(self) -> bool:
        return all(map(is_, [parameter.grad for parameter in self.parameters], self.views)) or all(
            parameter.grad is view or not parameter.requires_grad
            for parameter, view in zip(self.parameters, self.views, strict=True)
        )

    def is_unwritten(self) -> bool:
        return self.buffer is None or self.buffer._version == self.version  # which all views share

    @torch.no_grad()
    def receive(self, written: list[Tensor]) -> Sequence[Tensor]:
        handle, buffer = self.handle, self.buffer
        assert handle is not None and buffer is not None
        unwritten = self.is_unwritten()
        wire = handle.synchronize()
        assert isinstance(wire, Tensor)
        if not unwritten:
            raise changed_in_flight(self)
        self.handle = None
        result = self.options.compression.decompress(wire, self.ctx)
        if result is not buffer:
            buffer.copy_(result)
        return self.views

    def _check_dtypes(self) -> None:
        dtype = self.parameters[0].dtype
        if dtype is not self.bound_dtype or {parameter.dtype for parameter in self.parameters} != {dtype}:
            for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
                check_dtype(gradient.name, self.bound_dtype or dtype, parameter.dtype)
            self.bound_dtype = dtype

    def _lay_out(self) -> None:
        self.layout = []
        offset = 0
        for parameter in self.parameters:
            # Elements lie in the parameter's order, so that optimizers find both alike.
            dense = memory_order(parameter) != ()
            strides = parameter.stride() if dense else torch.empty(parameter.shape, device="meta").stride()
            self.layout.append((tuple(parameter.shape), strides, offset))
            offset += parameter.numel()
        # Ranks whose buckets are not alike must miss each other rather than add what does not belong together.
        names = [gradient.name for gradient in self.gradients]
        digest = hashlib.sha256(repr((names, self.layout)).encode()).hexdigest()[:12]
        self.wire_name = f"{self.name}+{len(names) - 1}[{digest}]"

    def _fill(self, grads: Sequence[Tensor | None], anew: bool) -> None:
        """Copies the gradients that are not views into the buffer, or all into a new one, and makes them views."""
        if anew or self.buffer is None:
            first = self.parameters[0]
            size = sum(parameter.numel() for parameter in self.parameters)
            kept = self.options.keep_buckets and first.device.type == "cpu"
            make = memory_that_stays if kept else torch.empty
            self.buffer = make(size, dtype=first.dtype, device=first.device)
            self.views = [self.buffer.as_strided(*geometry) for geometry in self.layout]
            self.pointers = [view.data_ptr() for view in self.views]
        targets, sources = [], []
        for grad, view in zip(grads, self.views, strict=True):
            if grad is None:
                view.zero_()
            elif grad is not view:
                targets.append(view)
                sources.append(grad)
        if any(map(attrgetter("is_sparse"), sources)):
            raise self._sparse_error()
        if sources:
            torch._foreach_copy_(targets, sources)
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.requires_grad:
                parameter.grad = view

    def _sparse_error(self) -> InvalidArgumentError:
        names = [
            gradient.name
            for parameter, gradient in zip(self.parameters, self.gradients, strict=True)
            if parameter.grad is not None and parameter.grad.is_sparse
        ]
        return InvalidArgumentError(
            f"'{names[0]}' has a sparse gradient, and shares a bucket with others: pass sparse_as_dense=True, or "
            "put it into no bucket"
        )
