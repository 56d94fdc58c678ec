"""Buckets of gradients: what one push_pull reduces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto

import torch

from byteps.errors import InvalidArgumentError
from byteps.handles import Handle
from byteps.in_flight import InFlight
from byteps.torch.eager import untraced
from byteps.torch.options import ReducerOptions
from byteps.torch.presence import Presence
from byteps.torch.states import transition

__all__ = ["Bucket", "BucketState", "Gradient", "changed_in_flight", "check_dtype"]

Tensor = torch.Tensor


class Gradient:
    """One parameter's gradient in a round. It has no reference to the parameter, which owns it."""

    __slots__ = ("bucket_index", "name", "passes_left")

    def __init__(self, name: str, bucket_index: int) -> None:
        self.name = name
        self.bucket_index = bucket_index  # in the reducer's list of buckets
        self.passes_left = 0  # number of backward passes until it is complete

    def expect(self, passes: int) -> None:
        self.passes_left = passes

    @untraced
    def count(self) -> int:
        """Counts one backward pass. Returns the number of those left; negative: one too many."""
        self.passes_left -= 1
        return self.passes_left

    def rename(self, before: str, prefix: str) -> None:
        self.name = prefix + self.name.removeprefix(before)


class BucketState(Enum):
    """States of a bucket in a round."""

    WAITING = auto()  # it waits for gradients, and was not sent in this round
    IN_FLIGHT = auto()  # the core uses its memory
    REDUCED = auto()  # its gradients are those of all ranks
    FAILED = auto()  # its push_pull has failed
    DEFERRED = auto()  # the core still uses its memory for the round before


_IDLE = (BucketState.WAITING, BucketState.REDUCED, BucketState.FAILED)
_IN_FLIGHT = (BucketState.IN_FLIGHT, BucketState.DEFERRED)
_SENT = (BucketState.IN_FLIGHT, BucketState.REDUCED, BucketState.FAILED)


class Bucket(ABC):
    """Gradients that are reduced together. `parameters` and `gradients` have the same order."""

    __slots__ = ("_handle", "_missing", "_passes", "_state", "gradients", "options", "parameters", "priority")

    def __init__(self, parameters: Sequence[Tensor], gradients: Sequence[Gradient], options: ReducerOptions) -> None:
        self.parameters = parameters
        self.gradients = gradients
        self.options = options
        self.priority = 0  # of its push_pull; larger ones go first
        self._state = BucketState.WAITING
        self._handle: Handle | None = None  # while the core uses its memory
        self._passes = 0  # number of backward passes that add to each gradient of a round
        self._missing = 0  # number of gradients that are not complete

    @property
    def name(self) -> str:
        return self.gradients[0].name

    @property
    def state(self) -> BucketState:
        return self._state

    @property
    def is_in_flight(self) -> bool:
        """Whether the core uses its memory."""
        return self._state in _IN_FLIGHT

    @property
    def is_sent(self) -> bool:
        """Whether it was sent in this round."""
        return self._state in _SENT

    def begin_round(self, passes: int) -> None:
        """Begins to wait for the gradients of `passes` backward passes. DEFERRED stays as it is."""
        if self._state is not BucketState.DEFERRED:
            self._state = transition(self._state, _IDLE, BucketState.WAITING)
        self._passes = passes
        self.expect_gradients()

    def expect_gradients(self) -> None:
        """Begins to wait for gradients of all the round's passes; again, if it was reduced."""
        self._missing = 0
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            gradient.expect(self._passes)
            self._missing += parameter.requires_grad

    @untraced
    def count(self, gradient: Gradient) -> bool:
        """Counts one backward pass. Returns whether the bucket may be ready."""
        left = gradient.count()
        if left > 0:
            return False
        self._missing -= 1
        return self._missing <= 0 or left < 0

    def is_ready(self) -> bool:
        """Whether backward can send it: all of its gradients are complete."""
        return self._missing <= 0 and self._may_be_sent()

    def is_due(self) -> bool:
        """Whether it has something that was not sent."""
        if self.is_sent and all(gradient.passes_left == self._passes for gradient in self.gradients):
            return False
        return any(parameter.requires_grad for parameter in self.parameters)

    def set_priority(self, priority: int) -> None:
        self.priority = priority

    def rename(self, before: str, prefix: str) -> None:
        """Begins another job, whose ranks do not know the gradients: renames them."""
        for gradient in self.gradients:
            gradient.rename(before, prefix)

    def learn(self, presence: Presence) -> None:  # noqa: B027  (of no interest to most)
        """Receives the answer of a query about its gradients."""

    @abstractmethod
    def wire_names(self) -> Sequence[str]:
        """Returns the names of push_pulls that other ranks may wait for."""

    @abstractmethod
    def is_in_place(self) -> bool:
        """Whether each .grad is still the tensor that is in flight."""

    @abstractmethod
    def is_unwritten(self) -> bool:
        """Whether the program has not written to the memory that is in flight."""

    def is_done(self) -> bool:
        """Whether `finish` and `receive_deferred` would not wait."""
        return self._handle is None or self._handle.poll()

    def send(self, in_flight: InFlight, step: int) -> None:
        """Starts its push_pull in this step of training. A missing gradient counts as zeros."""
        if self._state is not BucketState.WAITING:  # which it is, almost always
            transition(self._state, _IDLE, BucketState.IN_FLIGHT)
        self._start(in_flight, step)
        self._state = BucketState.IN_FLIGHT

    def keep_own(self) -> None:
        """Replaces `send` in a job of one rank, whose gradients are those of all ranks."""
        self._state = transition(self._state, _IDLE, BucketState.REDUCED)

    def proceed(self) -> None:  # noqa: B027  (most are sent as a whole)
        """Starts push_pulls that depend on answers of other ranks. Comes before `finish`."""

    def finish(self, written: list[Tensor]) -> None:
        """Waits until each .grad, which must be what was sent, is the gradient of all ranks.

        Args:
            written: gets the tensors that the core has written to without torch's knowledge.

        Raises:
            InvalidArgumentError: .grad or the memory was changed while it was in flight.
            BytePSError: the push_pull has failed.
        """
        new = transition(self._state, (BucketState.IN_FLIGHT,), BucketState.REDUCED)
        in_place = self.is_in_place()
        gradients = self._receive(written)
        if not in_place:
            raise changed_in_flight(self)
        self._store(gradients)
        self._state = new

    def fail(self) -> None:
        """Ends a round in which `finish` or `receive_deferred` has raised."""
        self._state = transition(self._state, _IN_FLIGHT, BucketState.FAILED)
        self._release()

    def defer(self) -> None:
        """Has the next round begin while this one's gradients are in flight."""
        self._state = transition(self._state, (BucketState.IN_FLIGHT,), BucketState.DEFERRED)

    def receive_deferred(self, written: list[Tensor]) -> Sequence[Tensor | None]:
        """Waits like `finish`, but does not touch .grad, which may belong to the next step.

        Returns:
            The gradients of all ranks, valid until the next `send`; None where no rank has one.
        """
        new = transition(self._state, (BucketState.DEFERRED,), BucketState.WAITING)
        gradients = self._receive(written)
        self._state = new
        return gradients

    @abstractmethod
    def _may_be_sent(self) -> bool:
        """Whether it can be sent during backward when no gradient is missing."""

    @abstractmethod
    def _start(self, in_flight: InFlight, step: int) -> None:
        """Starts the push_pull, and sets the handle."""

    @abstractmethod
    def _receive(self, written: list[Tensor]) -> Sequence[Tensor | None]:
        """Waits, returns the gradients, and clears the handle unless the push_pull failed."""

    def _store(self, gradients: Sequence[Tensor | None]) -> None:  # noqa: B027  (most are received in place)
        """Makes the gradients that were received each parameter's .grad."""

    def _release(self) -> None:
        """Releases references to tensors and push_pulls."""
        self._handle = None


def changed_in_flight(bucket: Bucket) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"'{bucket.name}' was changed while it was in flight: {bucket.options.owner.when_changed}"
    )


def check_dtype(name: str, bound: torch.dtype | None, dtype: torch.dtype) -> None:
    """Raises InvalidArgumentError if `name` is bound to another dtype."""
    if bound is not None and bound is not dtype:
        raise InvalidArgumentError(
            f"'{name}' has a gradient of {dtype}, and had one of {bound} before, which the ranks know it by: cast the "
            "model before its gradients are distributed, or distribute them again after the cast"
        )
