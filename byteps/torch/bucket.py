"""What travels as one push_pull: the gradient of one parameter here, those of many in bucket.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch

from byteps.compression import sends_as_is
from byteps.errors import InvalidArgumentError
from byteps.handles import Handle, InFlight
from byteps.ops import DTYPE_CODES
from byteps.torch.ops import start_push_pull
from byteps.torch.options import ReducerOptions
from byteps.torch.presence import Presence
from byteps.torch.sparse import RowExchange, name_of_rows
from byteps.torch.tensor import DTYPE_NAMES

__all__ = ["Bucket", "Gradient", "SingleParameterBucket", "changed_in_flight", "check_dtype"]

Tensor = torch.Tensor


class Gradient:
    """One parameter's gradient, as its hook sees it. It does not know the parameter, which owns it through the hook."""

    __slots__ = ("bucket_index", "left", "name")

    def __init__(self, name: str, bucket_index: int, passes: int) -> None:
        self.name = name
        self.bucket_index = bucket_index  # in the reducer's list
        self.left = passes  # backward passes until it is sent


class Bucket(ABC):
    """Gradients that travel together. From `send` to `finish` the core uses their memory."""

    __slots__ = ("gradients", "handle", "missing", "options", "parameters", "priority", "reduced", "sent", "step")

    def __init__(self, parameters: Sequence[Tensor], gradients: Sequence[Gradient], options: ReducerOptions) -> None:
        self.parameters = parameters
        self.gradients = gradients
        self.options = options
        self.priority = 0  # of its push_pull; larger goes first
        self.step = 0  # of training, as its reducer counts
        self.handle: Handle | None = None  # in flight
        self.missing = 0  # gradients that backward has yet to give
        self.sent = False  # since the last synchronize
        self.reduced = False  # since the last step or zero_grad

    @property
    def name(self) -> str:
        return self.gradients[0].name

    def expect(self, passes: int) -> None:
        """Begins to wait for gradients from so many backward passes each."""
        self.missing = 0
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            gradient.left = passes
            self.missing += parameter.requires_grad

    def is_due(self, passes: int) -> bool:
        """Whether there is something that the other ranks do not have."""
        if self.sent and all(gradient.left == passes for gradient in self.gradients):
            return False
        return any(parameter.requires_grad for parameter in self.parameters)

    @abstractmethod
    def may_go(self) -> bool:
        """Whether it can be sent during backward: nothing more will come."""

    def rename(self, before: str, prefix: str) -> None:
        """For another job, whose ranks know nothing of its gradients yet: their names begin with `prefix` there."""
        for gradient in self.gradients:
            gradient.name = prefix + gradient.name.removeprefix(before)

    def learn(self, presence: Presence) -> None:  # noqa: B027  (of no interest to most)
        """What the ranks together have of its gradients."""

    @abstractmethod
    def wire_names(self) -> Sequence[str]:
        """What the other ranks may wait for it by."""

    @abstractmethod
    def send(self, in_flight: InFlight) -> None:
        """Starts the push_pull, which is of `step`. A gradient that is not there is zeros."""

    def proceed(self) -> None:  # noqa: B027  (most are on their way as a whole)
        """Before `finish`: starts what could not be sent before the other ranks had answered. May wait for them."""

    @abstractmethod
    def is_in_place(self) -> bool:
        """Whether each .grad is still the tensor that is in flight."""

    @abstractmethod
    def is_unwritten(self) -> bool:
        """Whether the program has left the memory alone that is in flight."""

    def is_done(self) -> bool:
        """Whether `receive` would not wait."""
        return self.handle is None or self.handle.poll()

    @abstractmethod
    def receive(self, written: list[Tensor]) -> Sequence[Tensor | None]:
        """Waits until the memory that was sent has the gradients of all ranks. Leaves .grad alone.

        Args:
            written: gets the tensors that the core has written to without torch's knowledge.

        Returns:
            The gradients in the order of `parameters`, valid until the next `send`; None: no rank has that one.

        Raises:
            InvalidArgumentError: the memory was changed while it was in flight.
            BytePSError: what the push_pull failed of.
        """

    def finish(self, written: list[Tensor]) -> None:
        """As `receive`, where each .grad must be what was sent, and is the gradient of all ranks then."""
        in_place = self.is_in_place()
        self.receive(written)
        if not in_place:
            raise changed_in_flight(self)

    def release(self) -> None:
        """After `receive`, which does it itself unless it raises."""
        self.handle = None


class SingleParameterBucket(Bucket):
    """The gradient of one parameter, sent from where it is."""

    __slots__ = ("bound_dtype", "code", "ctx", "grad", "is_sparse", "nbytes", "op", "quick_dtype", "rows", "version")

    def __init__(self, parameters: Sequence[Tensor], gradients: Sequence[Gradient], options: ReducerOptions) -> None:
        super().__init__(parameters, gradients, options)
        self.is_sparse: bool | None = None  # None: no rank has ever had this gradient
        self.bound_dtype: torch.dtype | None = None  # that the ranks know the name with
        self.quick_dtype: torch.dtype | None = None  # of gradients that need no preparation at all
        self.code = self.nbytes = 0
        self.op = options.op.value
        self.grad: Tensor | None = None  # the parameter's .grad when it was sent
        self.rows: RowExchange | None = None  # if it is a sparse gradient that is in flight
        self.version = 0
        self.ctx: object = None  # what the compression wants back

    def expect(self, passes: int) -> None:
        self.gradients[0].left = passes
        self.missing = 1

    def may_go(self) -> bool:
        # Of a sparse gradient the others must know first that it is one: they may have none to tell from.
        if self.is_sparse is not None:
            return True
        grad = self.parameters[0].grad
        return grad is None or not grad.is_sparse

    def rename(self, before: str, prefix: str) -> None:
        super().rename(before, prefix)
        self.is_sparse = self.bound_dtype = self.quick_dtype = None

    def learn(self, presence: Presence) -> None:
        self.is_sparse = presence.sparse

    def wire_names(self) -> Sequence[str]:
        return self.name, name_of_rows(self.name)

    def send(self, in_flight: InFlight) -> None:
        grad = self.parameters[0].grad
        if (
            grad is not None
            and grad.dtype is self.quick_dtype
            and type(grad) is Tensor
            and grad.layout is torch.strided
            and grad.is_cpu
            and grad.nbytes == self.nbytes
            and grad.is_contiguous()
            and not grad.is_neg()
        ):
            pointer = grad.data_ptr()
            self.handle = in_flight.start(
                self.gradients[0].name,
                pointer,
                pointer,
                self.nbytes,
                self.code,
                self.op,
                0,
                self.priority,
                grad,
                _done,
                shape=grad.shape,
                step=self.step,
            )
        elif (grad is not None and grad.is_sparse) or (grad is None and self.is_sparse):
            self._send_rows(grad)
        else:
            grad = self._send_dense(grad)
        self.grad = grad
        self.version = 0 if grad is None else grad._version

    def proceed(self) -> None:
        if self.rows is not None:
            self.rows.send_payload()

    def is_in_place(self) -> bool:
        return self.parameters[0].grad is self.grad

    def is_unwritten(self) -> bool:
        return self.grad is None or self.grad._version == self.version

    def receive(self, written: list[Tensor]) -> Sequence[Tensor | None]:
        grad, handle, rows = self.grad, self.handle, self.rows
        assert handle is not None
        unwritten = self.is_unwritten()
        result = handle.synchronize() if rows is None else rows.finish()
        if not unwritten:
            raise changed_in_flight(self)
        self.handle = self.grad = self.rows = None
        if rows is not None:
            return (cast("Tensor | None", result),)
        assert grad is not None
        if result is None:
            written.append(grad)
        else:
            decompressed = self.options.compression.decompress(cast(Tensor, result), self.ctx)
            if decompressed is not grad:
                grad.copy_(decompressed)
        return (grad,)

    def finish(self, written: list[Tensor]) -> None:
        if self.rows is None:
            super().finish(written)
            return
        in_place = self.is_in_place()
        (gradient,) = self.receive(written)
        if not in_place:
            raise changed_in_flight(self)
        self.parameters[0].grad = gradient

    def release(self) -> None:
        self.handle = self.grad = self.rows = None

    def _send_dense(self, grad: Tensor | None) -> Tensor:
        parameter = self.parameters[0]
        if self.is_sparse:
            raise _changed_layout(self.name, "sparse", "dense")
        if grad is None:
            grad = parameter.grad = torch.zeros_like(parameter)
        elif grad.layout is torch.strided and grad.stride() != parameter.stride():
            # Ranks agree on the order of the parameter's elements in memory, not on that of any tensor put into .grad.
            grad = parameter.grad = torch.empty_like(parameter).copy_(grad)
        check_dtype(self.name, self.bound_dtype, grad.dtype)
        wire, self.ctx = self.options.compression.compress(grad)
        self.handle = start_push_pull(wire, self.options.op, self.name, self.priority, in_place=True, step=self.step)
        self.bound_dtype = grad.dtype
        self.is_sparse = False
        if sends_as_is(self.options.compression) and parameter.is_contiguous() and grad.is_cpu and grad.numel():
            self.quick_dtype = grad.dtype
            self.code, self.nbytes = DTYPE_CODES[DTYPE_NAMES[grad.dtype]], grad.nbytes
        return grad

    def _send_rows(self, grad: Tensor | None) -> None:
        if self.is_sparse is False:
            raise _changed_layout(self.name, "dense", "sparse")
        self.rows = RowExchange(self.parameters[0], grad, self.name, self.options.op, self.priority, self.step)
        self.handle = self.rows.counts
        self.is_sparse = True


def changed_in_flight(bucket: Bucket) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"'{bucket.name}' was changed while it was in flight: {bucket.options.owner.when_changed}"
    )


def check_dtype(name: str, bound: torch.dtype | None, dtype: torch.dtype) -> None:
    if bound is not None and bound is not dtype:
        raise InvalidArgumentError(
            f"'{name}' has a gradient of {dtype}, and had one of {bound} before: the ranks know it by that; cast the "
            "model before its gradients are distributed, or distribute them anew after the cast"
        )


def _changed_layout(name: str, before: str, now: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"'{name}' has a {now} gradient, and a {before} one before or on another rank: make them alike, for example "
        "with sparse_as_dense=True"
    )


def _done() -> None:
    """The result of a gradient that needs nothing more."""
