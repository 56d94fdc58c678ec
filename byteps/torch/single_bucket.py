"""The bucket of one parameter, whose gradient is sent from its own memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from byteps.buffer import DTYPE_CODES
from byteps.compression import sends_as_is
from byteps.device import Device
from byteps.errors import InvalidArgumentError
from byteps.handles import Prepared
from byteps.in_flight import InFlight
from byteps.torch.bucket import Bucket, Gradient, changed_in_flight, check_dtype
from byteps.torch.device import device_of
from byteps.torch.eager import untraced
from byteps.torch.options import ReducerOptions
from byteps.torch.presence import Presence
from byteps.torch.sparse import RowExchange, name_of_rows
from byteps.torch.start import start_push_pull
from byteps.torch.tensor import DTYPE_NAMES

__all__ = ["SingleParameterBucket"]

Tensor = torch.Tensor


class SingleParameterBucket(Bucket):
    """The gradient of one parameter, dense or sparse."""

    __slots__ = (
        *("_bound_dtype", "_context", "_copier", "_grad", "_is_sparse", "_prepared", "_quick_device", "_quick_dtype"),
        *("_quick_shape", "_rows", "_version"),
    )

    def __init__(self, parameters: Sequence[Tensor], gradients: Sequence[Gradient], options: ReducerOptions) -> None:
        super().__init__(parameters, gradients, options)
        self._is_sparse: bool | None = None  # None: no rank has had this gradient yet
        self._bound_dtype: torch.dtype | None = None  # the dtype that the ranks know the name with
        # Dtype, device and shape of gradients that are sent without preparation.
        self._quick_dtype: torch.dtype | None = None
        self._quick_device: torch.device | None = None
        self._copier: Device | None = None  # None: the CPU's memory
        self._quick_shape = torch.Size()
        self._prepared: Prepared | None = None
        self._grad: Tensor | None = None  # the parameter's .grad when it was sent
        self._version = 0  # its version counter then
        self._rows: RowExchange | None = None  # in flight, if the gradient is sparse
        self._context: object = None  # of the compression, for decompressing

    def expect_gradients(self) -> None:
        self.gradients[0].expect(self._passes)
        self._missing = 1

    def rename(self, before: str, prefix: str) -> None:
        super().rename(before, prefix)
        self._is_sparse = self._bound_dtype = self._quick_dtype = self._prepared = None

    def learn(self, presence: Presence) -> None:
        self._is_sparse = presence.sparse

    def wire_names(self) -> Sequence[str]:
        return self.name, name_of_rows(self.name)

    def is_in_place(self) -> bool:
        return self.parameters[0].grad is self._grad

    def is_unwritten(self) -> bool:
        return self._grad is None or self._grad._version == self._version

    def proceed(self) -> None:
        if self._rows is not None:
            self._rows.send_payload()

    @untraced
    def count(self, gradient: Gradient) -> bool:
        # As the base class does, in one call: hooks run between kernels of the program, with little
        # of this code in the processor's caches.
        gradient.passes_left -= 1
        if gradient.passes_left > 0:
            return False
        self._missing -= 1
        return True

    def is_ready(self) -> bool:
        return self._missing <= 0 and (self._is_sparse is not None or self._may_be_sent())

    def _may_be_sent(self) -> bool:
        # A rank without this gradient has to learn first that it is sparse.
        if self._is_sparse is not None:
            return True
        grad = self.parameters[0].grad
        return grad is None or not grad.is_sparse

    def _start(self, in_flight: InFlight, step: int) -> None:
        grad = self.parameters[0].grad
        prepared = self._prepared
        if (
            grad is not None
            and prepared is not None
            and prepared.node is in_flight.node
            and grad.dtype is self._quick_dtype
            and type(grad) is Tensor
            and grad.layout is torch.strided
            and grad.device == self._quick_device
            and grad.shape == self._quick_shape
            and grad.is_contiguous()
            and not grad.is_neg()
        ):
            in_flight.start_prepared(prepared, grad.data_ptr(), self.priority, step, grad, self._copier)
            self._handle = prepared
        elif (grad is not None and grad.is_sparse) or (grad is None and self._is_sparse):
            self._start_rows(grad, step)
        else:
            grad = self._start_dense(grad, in_flight, step)
        self._grad = grad
        self._version = 0 if grad is None else grad._version

    def _start_dense(self, grad: Tensor | None, in_flight: InFlight, step: int) -> Tensor:
        parameter = self.parameters[0]
        if self._is_sparse:
            raise _changed_layout(self.name, "sparse", "dense")
        if grad is None:
            grad = parameter.grad = torch.zeros_like(parameter)
        elif grad.layout is torch.strided and grad.stride() != parameter.stride():
            # Ranks agree on the memory order of the parameter, not on that of a tensor that was put
            # into .grad.
            grad = parameter.grad = torch.empty_like(parameter).copy_(grad)
        check_dtype(self.name, self._bound_dtype, grad.dtype)
        wire, self._context = self.options.compression.compress(grad)
        self._handle = start_push_pull(wire, self.options.op, self.name, self.priority, in_place=True, step=step)
        self._bound_dtype = grad.dtype
        self._is_sparse = False
        copier = device_of(grad.device)
        is_usable = grad.is_cpu or copier is not None
        if sends_as_is(self.options.compression) and parameter.is_contiguous() and is_usable and grad.numel():
            self._quick_dtype = grad.dtype
            self._quick_device, self._copier = grad.device, copier
            self._quick_shape = grad.shape
            code = DTYPE_CODES[DTYPE_NAMES[grad.dtype]]
            self._prepared = in_flight.prepare(self.name, grad.nbytes, code, self.options.op.value, grad.shape)
        return grad

    def _start_rows(self, grad: Tensor | None, step: int) -> None:
        if self._is_sparse is False:
            raise _changed_layout(self.name, "dense", "sparse")
        self._rows = RowExchange(self.parameters[0], grad, self.name, self.options.op, self.priority, step)
        self._handle = self._rows.counts
        self._is_sparse = True

    def _receive(self, written: list[Tensor]) -> Sequence[Tensor | None]:
        grad, handle, rows = self._grad, self._handle, self._rows
        assert handle is not None
        unwritten = self.is_unwritten()
        result = handle.synchronize() if rows is None else rows.finish()
        if not unwritten:
            raise changed_in_flight(self)
        self._release()
        if rows is not None:
            return (cast("Tensor | None", result),)
        assert grad is not None
        if result is None:
            written.append(grad)
        else:
            decompressed = self.options.compression.decompress(cast(Tensor, result), self._context)
            if decompressed is not grad:
                grad.copy_(decompressed)
        return (grad,)

    def _store(self, gradients: Sequence[Tensor | None]) -> None:
        if self._is_sparse:
            self.parameters[0].grad = gradients[0]

    def _release(self) -> None:
        self._handle = self._grad = self._rows = None


def _changed_layout(name: str, before: str, now: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"'{name}' has a {now} gradient, and had a {before} one before or on another rank: use the same layout "
        "everywhere, for example with sparse_as_dense=True"
    )
