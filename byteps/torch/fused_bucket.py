"""The bucket of several parameters, whose gradients are sent from one buffer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import attrgetter, is_

import torch

from byteps.errors import InvalidArgumentError
from byteps.in_flight import InFlight
from byteps.torch.bucket import Bucket, Gradient, changed_in_flight, check_dtype
from byteps.torch.options import ReducerOptions
from byteps.torch.start import start_push_pull
from byteps.torch.tensor import memory_order, memory_that_stays

__all__ = ["FusedBucket"]

Tensor = torch.Tensor


class FusedBucket(Bucket):
    """Gradients of one dtype and device, contiguous in one buffer.

    From the first `send` on, each parameter's .grad is a view of the buffer. If it still is one at
    the next `send` (zero_grad(set_to_none=False)), nothing is copied. Otherwise each gradient is
    copied once: into the same buffer, or into a new one if `options.keep_buckets` is False.
    """

    __slots__ = (*("_bound_dtype", "_buffer", "_context", "_layout", "_pointers", "_version", "_views", "_wire_name"),)

    def __init__(self, parameters: Sequence[Tensor], gradients: Sequence[Gradient], options: ReducerOptions) -> None:
        super().__init__(parameters, gradients, options)
        self._buffer: Tensor | None = None
        # Shape, strides and offset of each view.
        self._layout: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        self._views: list[Tensor] = []
        self._pointers: list[int] = []  # of the views
        self._bound_dtype: torch.dtype | None = None  # the dtype that the ranks know the name with
        self._wire_name = ""
        self._version = 0  # the buffer's version counter when it was sent
        self._context: object = None  # of the compression, for decompressing

    def rename(self, before: str, prefix: str) -> None:
        super().rename(before, prefix)
        self._bound_dtype = None
        if self._layout:
            self._lay_out()

    def wire_names(self) -> Sequence[str]:
        if not self._layout:
            self._lay_out()
        return (self._wire_name,)

    def _may_be_sent(self) -> bool:
        # A parameter that was unfrozen after `expect_gradients` is not counted as missing.
        return all(
            gradient.passes_left <= 0 or not parameter.requires_grad
            for parameter, gradient in zip(self.parameters, self.gradients, strict=True)
        )

    @torch.no_grad()
    def _start(self, in_flight: InFlight, step: int) -> None:
        self._check_dtypes()
        grads = [parameter.grad for parameter in self.parameters]
        # Module.to() gives .grad, which is a view, other memory.
        moved = [view.data_ptr() for view in self._views] != self._pointers
        if moved or not self._views:
            self._lay_out()
        if moved or not self._views or not all(map(is_, grads, self._views)):
            self._fill(grads, anew=moved or not self.options.keep_buckets)
        assert self._buffer is not None
        wire, self._context = self.options.compression.compress(self._buffer)
        self._handle = start_push_pull(wire, self.options.op, self._wire_name, self.priority, in_place=True, step=step)
        self._version = self._buffer._version

    def is_in_place(self) -> bool:
        return all(map(is_, [parameter.grad for parameter in self.parameters], self._views)) or all(
            parameter.grad is view or not parameter.requires_grad
            for parameter, view in zip(self.parameters, self._views, strict=True)
        )

    def is_unwritten(self) -> bool:
        return self._buffer is None or self._buffer._version == self._version  # shared by all views

    @torch.no_grad()
    def _receive(self, written: list[Tensor]) -> Sequence[Tensor]:
        handle, buffer = self._handle, self._buffer
        assert handle is not None and buffer is not None
        unwritten = self.is_unwritten()
        wire = handle.synchronize()
        assert isinstance(wire, Tensor)
        if not unwritten:
            raise changed_in_flight(self)
        self._handle = None
        result = self.options.compression.decompress(wire, self._context)
        if result is not buffer:
            buffer.copy_(result)
        return self._views

    def _check_dtypes(self) -> None:
        dtype = self.parameters[0].dtype
        if dtype is not self._bound_dtype or {parameter.dtype for parameter in self.parameters} != {dtype}:
            for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
                check_dtype(gradient.name, self._bound_dtype or dtype, parameter.dtype)
            self._bound_dtype = dtype

    def _lay_out(self) -> None:
        self._layout = []
        offset = 0
        for parameter in self.parameters:
            # Elements lie in the parameter's order, so that optimizers find both alike.
            dense = memory_order(parameter) != ()
            strides = parameter.stride() if dense else torch.empty(parameter.shape, device="meta").stride()
            self._layout.append((tuple(parameter.shape), strides, offset))
            offset += parameter.numel()
        # A digest in the name keeps ranks whose buckets differ from adding gradients that do not
        # belong together.
        names = [gradient.name for gradient in self.gradients]
        digest = hashlib.sha256(repr((names, self._layout)).encode()).hexdigest()[:12]
        self._wire_name = f"{self.name}+{len(names) - 1}[{digest}]"

    def _fill(self, grads: Sequence[Tensor | None], anew: bool) -> None:
        """Copies gradients into the buffer, or into a new one; afterwards they are views."""
        if anew or self._buffer is None:
            first = self.parameters[0]
            size = sum(parameter.numel() for parameter in self.parameters)
            kept = self.options.keep_buckets and first.device.type == "cpu"
            make = memory_that_stays if kept else torch.empty
            self._buffer = make(size, dtype=first.dtype, device=first.device)
            self._views = [self._buffer.as_strided(*geometry) for geometry in self._layout]
            self._pointers = [view.data_ptr() for view in self._views]
        targets, sources = [], []
        for grad, view in zip(grads, self._views, strict=True):
            if grad is None:
                view.zero_()
            elif grad is not view:
                targets.append(view)
                sources.append(grad)
        if any(map(attrgetter("is_sparse"), sources)):
            raise self._sparse_error()
        if sources:
            torch._foreach_copy_(targets, sources)
        for parameter, view in zip(self.parameters, self._views, strict=True):
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
            "give it a bucket of its own"
        )
