"""Sends the gradients of one owner when backward has them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from byteps.agreement import check_agreement, look_for_differences
from byteps.compression import compressor_name
from byteps.errors import InvalidArgumentError
from byteps.runtime import Job, current_job
from byteps.torch.backward_end import current_backward
from byteps.torch.bucket import Bucket, Gradient, SingleParameterBucket
from byteps.torch.eager import eager, frame_callback, untraced
from byteps.torch.fused_bucket import FusedBucket
from byteps.torch.grouping import group
from byteps.torch.nan_check import NanCheck
from byteps.torch.options import ReducerOptions
from byteps.torch.presence import Presence, PresenceQuery, name_of_query
from byteps.torch.sparse import densify
from byteps.torch.tensor import memory_order
from byteps.torch.values import sums_of

__all__ = ["Reducer"]

Tensor = torch.Tensor


class Reducer:
    """The gradients of some parameters on their way to the other ranks and back.

    A *round* is this way of all gradients, once. It begins with the first gradient that backward gives. A bucket is
    sent when its gradients have come from all of the round's backward passes; `complete` sends the rest and ends the
    round. When to call it, or what to do in its place, is up to subclasses. Buckets of equal priority, as all have at
    first, go in the order in which they were sent.

    Only the thread that runs the training loop calls the methods; backward may run in others.
    """

    def __init__(
        self, names: dict[Tensor, str], label: Callable[[], str], passes: int, options: ReducerOptions
    ) -> None:
        """Makes one without parameters; see `add`.

        Args:
            names: of parameters, the same on all ranks, in the order in which forward needs them.
            label: makes the prefix of the names that ranks meet under, for each job anew; used by no other reducer.
            passes: how many backward passes give gradients for one round.
            options: the same on all ranks.
        """
        current_job()  # an error now rather than in the first backward pass; and if there is no such compressor
        compressor_name(options.compression)
        self._job: Job | None = None  # that it has joined
        self._label = label
        self.prefix = ""  # of the names that ranks meet under
        self.on_join: Callable[[], None] = _nothing  # called when it has joined another job
        self.hyperparameters: Callable[[], Sequence[str]] = list  # of what uses the gradients, a line for each
        self._compared_in: Job | None = None  # the job in which ranks have compared their weights
        self.synchronized = False  # .grad is that of all ranks
        self.completed = 0  # rounds
        self._step_number = 1  # the round that is next or has begun, as all ranks count in this job
        self.paused = False  # gradients that come stay here, and are not counted
        self._names = names
        self._positions = {parameter: position for position, parameter in enumerate(names)}
        self._options = options
        self._nan_check = NanCheck() if options.nan_check else None
        self._inspects = options.nan_check or options.sparse_as_dense  # before a bucket is sent
        self._passes = passes
        self._buckets: list[Bucket] = []
        self._unhooked: list[tuple[Tensor, Gradient]] = []  # frozen ones, as yet
        self._unseen: dict[str, tuple[Tensor, Bucket]] = {}  # gradients that no rank has ever had, as far as all know
        self._in_flight: deque[Bucket] = deque()
        self._backward: int | None = None  # the pass that the last hook ran in

    def add(self, parameters: Sequence[Tensor], fallback_names: Sequence[str]) -> None:
        """Takes care of the gradients of `parameters`. Once it has joined, all ranks do this at once, and compare."""
        first = sum(len(bucket.parameters) for bucket in self._buckets)
        positions = {p: self._positions.get(p, first + index) for index, p in enumerate(parameters)}
        names = {p: self._names.get(p, name) for p, name in zip(parameters, fallback_names, strict=True)}
        ordered = sorted(parameters, key=positions.__getitem__)
        options = self._options
        if self._buckets and not options.bucket_bytes:
            options = replace(options, groups=None)  # which are those of the first parameters
        groups = [[ordered[position] for position in members] for members in group(ordered, options)]
        if self._job is not None:
            self._check_agreement(groups, names)
        for members in groups:
            gradients = [Gradient(f"{self.prefix}{names[p]}", len(self._buckets), self._passes) for p in members]
            self._add_bucket(members, gradients)

    def check_idle(self, action: str) -> None:
        """Raises InvalidArgumentError while the core uses the memory of the .grad of parameters."""
        if self._in_flight:
            raise InvalidArgumentError(
                f"{action} while {len(self._in_flight)} gradients are in flight, such as "
                f"'{self._in_flight[0].name}': call optimizer.step() or optimizer.synchronize() first"
            )

    def join(self) -> None:
        """Before anything is done in a job: finds the name that ranks meet under there, and compares what they have.

        Not when it is made: in a job that goes on after `resume` with more ranks, some have made theirs before.

        Raises:
            InvalidArgumentError: on all ranks: theirs differ.
        """
        job = current_job()
        if job is self._job:
            return
        before, self.prefix = self.prefix, self._label()
        self._unseen.clear()
        names = {}
        for bucket in self._buckets:
            bucket.rename(before, self.prefix)
            for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
                names[parameter] = gradient.name.removeprefix(self.prefix)
                self._unseen[gradient.name] = parameter, bucket
        self._check_agreement([bucket.parameters for bucket in self._buckets], names)
        self._job = job
        self._step_number = 1
        self.on_join()

    def complete(self) -> None:
        """Ends the round: sends the gradients that backward did not send, and waits for all."""
        self.join()
        errors: list[Exception] = []
        unused: list[Tensor] = []
        try:
            unused = self._send_the_rest(errors)
        except Exception as error:
            self._refuse_unsent(error)
            errors.append(error)
        self._wait(errors)
        for parameter in unused:
            parameter.grad = None
        self._begin_round()
        self.synchronized = True
        if self._nan_check is not None:
            try:
                self._nan_check.report(
                    self.prefix, self._step_number
                )  # even after an error, which may be this rank's alone
            except Exception as error:
                errors.append(error)
        try:
            self._look_for_differences()
        except Exception as error:
            errors.append(error)
        self._step_number += 1
        self.completed += 1
        if errors:
            raise errors[0]

    def hook_unfrozen(self) -> None:
        """Has backward tell of the gradients of parameters that were frozen before."""
        unfrozen = [item for item in self._unhooked if item[0].requires_grad]
        if unfrozen:
            self._unhooked = [item for item in self._unhooked if not item[0].requires_grad]
        for parameter, gradient in unfrozen:
            self._hook(parameter, gradient)

    def _add_bucket(self, parameters: list[Tensor], gradients: list[Gradient]) -> None:
        kind = SingleParameterBucket if len(parameters) == 1 else FusedBucket
        bucket = kind(parameters, gradients, self._options)
        bucket.expect(self._passes)
        self._buckets.append(bucket)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            self._unseen[gradient.name] = parameter, bucket
            self._unhooked.append((parameter, gradient))
        self.hook_unfrozen()

    def _check_agreement(self, groups: Iterable[Sequence[Tensor]], names: dict[Tensor, str]) -> None:
        lines = []
        for members in groups:
            described = []
            for p in members:
                order = "" if memory_order(p) is None else f" in memory order {memory_order(p)}"
                frozen = "" if p.requires_grad else ", frozen"
                described.append(f"'{names[p]}' of {p.dtype} {list(p.shape)}{order}{frozen}")
            lines.append(" with ".join(described))
        options = self._options
        arguments = (
            f"op={options.op.name}, backward_passes_per_step={self._passes}"
            f", compression={compressor_name(options.compression)}, sparse_as_dense={options.sparse_as_dense}"
            f", nan_check={options.nan_check}, find_unused_parameters={options.find_unused_parameters}"
        )
        # Ranks may know single parameters in other orders.
        check_agreement(options.owner.name, [arguments, *sorted(lines)], f"{self.prefix}agreement")

    def _look_for_differences(self) -> None:
        """Before the first step in a job: afterwards equal weights stay equal."""
        if self._compared_in is self._job:
            return
        self._compared_in = self._job
        named = {
            gradient.name: parameter
            for bucket in self._buckets
            for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True)
        }
        look_for_differences(
            self._options.owner.name,
            lambda: sums_of([named[name] for name in sorted(named)]),
            self.hyperparameters,
            f"{self.prefix}differences",
        )

    def _hook(self, parameter: Tensor, gradient: Gradient) -> None:
        alive = weakref.ref(self)  # the parameter owns the hook: a reference back would keep both forever

        def on_gradient(parameter: Tensor) -> None:
            reducer = alive()
            if reducer is None or reducer.paused:
                return
            if reducer._backward != current_backward():
                reducer._enter_backward()
            gradient.left = left = gradient.left - 1
            if left <= 0:
                bucket = reducer._buckets[gradient.bucket_index]
                bucket.missing -= 1
                if bucket.missing <= 0 or left < 0:
                    launch = Reducer._launch if frame_callback() is None else _launch_eagerly
                    launch(reducer, bucket, gradient)

        # Compiled autograd would trace the hook, and then computes wrong gradients.
        parameter.register_post_accumulate_grad_hook(untraced(on_gradient))

    @eager
    def _enter_backward(self) -> None:
        """The first gradient of a backward pass has come, or the first after a nested pass."""
        self.join()
        self.synchronized = False
        self._backward = current_backward()

    def _launch(self, bucket: Bucket, gradient: Gradient) -> None:
        """The last gradient of a bucket has come; or one too many, and then perhaps not the last."""
        if gradient.left < 0 and (bucket.handle is not None or not self._may_repeat()):
            raise InvalidArgumentError(
                f"backward() gave '{gradient.name}' more gradients than the {self._passes} that were expected before "
                f"it is averaged: {self._options.owner.when_repeated}. (Checkpointing counts twice with "
                "use_reentrant=True: use False. Set requires_grad to False where a pass needs no gradient.)"
            )
        if bucket.missing <= 0 and bucket.may_go():
            self._send(bucket)
            self._after_launch()

    def _may_repeat(self) -> bool:
        """Whether a gradient may come once more than there are passes, if it was not sent before."""
        return False

    def _after_launch(self) -> None:
        """Backward has sent a bucket."""

    def _send(self, bucket: Bucket) -> None:
        assert self._job is not None
        try:
            if self._inspects:
                self._inspect(bucket)
            if self._job.size > 1:
                bucket.step = self._step_number
                bucket.send(self._job.in_flight)
                self._in_flight.append(bucket)
        except Exception as error:
            self._refuse(bucket.wire_names(), error)
            raise
        bucket.sent = True

    def _refuse(self, names: Iterable[str], error: Exception) -> None:
        """These will not come from this rank in this round: the other ranks need not wait."""
        assert self._job is not None
        if not getattr(error, "counted", False):
            for name in names:
                self._job.in_flight.node.refuse(name, f"{type(error).__name__}: {error}", self._step_number)

    def _refuse_unsent(self, error: Exception) -> None:
        unsent = [bucket for bucket in self._buckets if not bucket.sent and bucket.is_due(self._passes)]
        self._refuse([name for bucket in unsent for name in bucket.wire_names()], error)
        self._refuse([name_of_query(self.prefix)], error)

    def _inspect(self, bucket: Bucket) -> None:
        """What is done before a bucket is sent, if there is anything."""
        if self._options.sparse_as_dense:
            densify(bucket.parameters)
        if self._nan_check is not None:
            self._nan_check.inspect(bucket)

    def _send_the_rest(self, errors: list[Exception]) -> list[Tensor]:
        """Sends all that is due. Returns the parameters that no rank has a gradient of, and that must get none."""
        due = self._due()
        query = self._ask()
        found = {} if query is None else self._learned(query)
        for bucket in due:
            if any(found.get(gradient.name, True) for gradient in bucket.gradients):
                self._send_collecting(bucket, errors)
        return self._unused(found)

    def _due(self) -> list[Bucket]:
        """The buckets that backward has not sent as they are now."""
        due: list[Bucket] = []
        if len(self._in_flight) < len(self._buckets):
            due = [bucket for bucket in self._buckets if bucket.handle is None and bucket.is_due(self._passes)]
        if self._options.sparse_as_dense:
            for bucket in due:
                densify(bucket.parameters)
        return due

    def _send_collecting(self, bucket: Bucket, errors: list[Exception]) -> None:
        try:
            self._send(bucket)
        except Exception as error:  # the others are on their way, and must be waited for
            errors.append(error)

    def _ask(self) -> PresenceQuery | None:
        """Asks the other ranks for gradients that may exist nowhere or be sparse; None: there is nothing to ask."""
        if self._job is None or self._job.size == 1:
            return None
        named = [(name, parameter) for name, (parameter, _) in self._unseen.items() if parameter.requires_grad]
        if self._options.find_unused_parameters:
            named = [
                (gradient.name, parameter)
                for bucket in self._buckets
                for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True)
                if parameter.requires_grad
            ]
        return PresenceQuery(named, self.prefix, self._step_number) if named else None

    def _learned(self, query: PresenceQuery) -> dict[str, Presence]:
        """The answer, by name."""
        found = query.result()
        for name in [name for name in self._unseen if found.get(name)]:
            _, bucket = self._unseen.pop(name)
            bucket.learn(found[name])
        return found

    def _unused(self, found: dict[str, Presence]) -> list[Tensor]:
        if all(found.values()):
            return []
        return [
            parameter
            for bucket in self._buckets
            for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True)
            if not found.get(gradient.name, True)
        ]

    def _wait(self, errors: list[Exception]) -> None:
        """Waits for all that is in flight, whatever happens: none may be left when the next round begins."""
        for bucket in self._in_flight:
            try:
                bucket.proceed()
            except Exception as error:
                errors.append(error)
        written: list[Tensor] = []
        while self._in_flight:
            bucket = self._in_flight[0]
            try:
                bucket.finish(written)
            except Exception as error:
                errors.append(error)
                bucket.release()
            bucket.reduced = True
            self._in_flight.popleft()
        if written:
            torch.autograd.graph.increment_version(written)

    def _begin_round(self) -> None:
        self._backward = None
        for bucket in self._buckets:
            bucket.sent = False
            bucket.expect(self._passes)
        self.hook_unfrozen()


def _nothing() -> None:
    """Nothing is to be done."""


_launch_eagerly = eager(Reducer._launch)
