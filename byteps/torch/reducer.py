"""Base class of reducers, which reduce gradients over the ranks while backward runs."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from byteps.agreement import check_agreement, look_for_differences
from byteps.compression import compressor_name
from byteps.errors import InvalidArgumentError
from byteps.runtime import Job, current_job
from byteps.torch.backward_end import current_backward
from byteps.torch.bucket import Bucket, Gradient
from byteps.torch.eager import eager, frame_callback, untraced
from byteps.torch.fused_bucket import FusedBucket
from byteps.torch.grouping import group
from byteps.torch.nan_check import NanCheck
from byteps.torch.options import ReducerOptions
from byteps.torch.presence import Presence, PresenceQuery, name_of_query
from byteps.torch.round import Round
from byteps.torch.single_bucket import SingleParameterBucket
from byteps.torch.sparse import densify
from byteps.torch.values import descriptions_of, sums_of

__all__ = ["Reducer"]

Tensor = torch.Tensor


class Reducer:
    """Reduces the gradients of some parameters, round by round.

    A *round* reduces each gradient once. It begins with the first gradient that backward gives. A
    bucket is sent when its gradients are complete, after all of the round's backward passes;
    `complete` sends the others and ends the round. Subclasses decide when to call it, or what to do
    instead. Buckets have equal priority at first, and go in the order in which they are sent.

    Only the thread that runs the training loop may call the methods; backward may run in other
    threads.
    """

    def __init__(
        self,
        names: dict[Tensor, str],
        label: Callable[[], str],
        passes: int,
        options: ReducerOptions,
        *,
        hyperparameters: Callable[[], Sequence[str]] = list,
        on_join: Callable[[str], None] | None = None,
    ) -> None:
        """Makes a reducer without parameters; see `add`.

        Args:
            names: of parameters, the same on all ranks, in the order in which forward needs them.
            label: makes the prefix of the names that push_pulls have, for each job anew; no two
                reducers share one.
            passes: number of backward passes that give gradients for one round.
            options: the same on all ranks.
            hyperparameters: returns a line for each hyperparameter that should be the same on all
                ranks.
            on_join: called with the prefix when the reducer has joined a job.
        """
        current_job()  # raises now rather than in the first backward pass; so does the next line
        compressor_name(options.compression)
        self._names = names
        self._positions = {parameter: position for position, parameter in enumerate(names)}
        self._label = label
        self._options = options
        self._hyperparameters = hyperparameters
        self._on_join = on_join
        self._nan_check = NanCheck() if options.nan_check else None
        self._inspects = options.nan_check or options.sparse_as_dense  # before a bucket is sent
        self._job: Job | None = None  # the job that the reducer has joined
        self._compared_in: Job | None = None  # the job in which ranks have compared their weights
        self._prefix = ""  # of the names that push_pulls have
        self._paused = False
        self._round = Round(passes)
        self._buckets: list[Bucket] = []
        self._in_flight: deque[Bucket] = deque()  # in the order in which they were sent
        self._unhooked: list[tuple[Tensor, Gradient]] = []  # frozen parameters
        self._unseen: dict[str, tuple[Tensor, Bucket]] = {}  # gradients that no rank has had so far

    @property
    def prefix(self) -> str:
        """Prefix of the names of push_pulls in this job."""
        return self._prefix

    @property
    def is_synchronized(self) -> bool:
        """Whether each .grad is that of all ranks."""
        return self._round.is_synchronized

    @property
    def completed_rounds(self) -> int:
        """Number of rounds that `complete` has ended."""
        return self._round.completed

    @property
    def is_paused(self) -> bool:
        """Whether the code is within `pause`."""
        return self._paused

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Within it, gradients stay on this rank and are not counted."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def add(self, parameters: Sequence[Tensor], fallback_names: Sequence[str]) -> None:
        """Adds `parameters`. If the reducer has joined a job, all ranks do so at once, and compare.

        Args:
            parameters: any number of them.
            fallback_names: one for each, for parameters that `names` does not have.
        """
        first = sum(len(bucket.parameters) for bucket in self._buckets)
        positions = {p: self._positions.get(p, first + index) for index, p in enumerate(parameters)}
        names = {p: self._names.get(p, name) for p, name in zip(parameters, fallback_names, strict=True)}
        ordered = sorted(parameters, key=positions.__getitem__)
        options = self._options
        if self._buckets and not options.bucket_bytes:
            options = replace(options, groups=None)  # the groups are of the first parameters
        groups = [[ordered[position] for position in members] for members in group(ordered, options)]
        if self._job is not None:
            self._check_agreement(groups, names)
        for members in groups:
            gradients = [Gradient(f"{self._prefix}{names[p]}", len(self._buckets)) for p in members]
            self._add_bucket(members, gradients)

    def check_idle(self, action: str) -> None:
        """Raises InvalidArgumentError if the core uses the memory of any .grad."""
        if self._in_flight:
            raise InvalidArgumentError(
                f"{action} while {len(self._in_flight)} gradients are in flight, such as "
                f"'{self._in_flight[0].name}': call optimizer.step() or optimizer.synchronize() first"
            )

    def join(self) -> None:
        """Joins the current job, unless it has: makes names, and compares parameters.

        Not called by the constructor: a rank that comes to the job by `resume` has its reducers
        from before.

        Raises:
            InvalidArgumentError: on all ranks: their parameters or options differ.
        """
        job = current_job()
        if job is self._job:
            return
        before, self._prefix = self._prefix, self._label()
        self._unseen.clear()
        names = {}
        for bucket in self._buckets:
            bucket.rename(before, self._prefix)
        for bucket, parameter, gradient in self._members():
            names[parameter] = gradient.name.removeprefix(self._prefix)
            self._unseen[gradient.name] = parameter, bucket
        self._check_agreement([bucket.parameters for bucket in self._buckets], names)
        self._job = job
        self._round.begin_job()
        if self._on_join is not None:
            self._on_join(self._prefix)

    def begin_step(self) -> None:
        """Begins another step of training, after the optimizer's step or zero_grad."""
        self._round.begin_step()

    def complete(self) -> None:
        """Ends the round: sends the buckets that backward has not sent, and waits for all."""
        self.join()
        step = self._round.step
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
        self._round.complete()
        self._expect_gradients()
        if self._nan_check is not None:
            try:
                self._nan_check.report(self._prefix, step)  # even after an error of this rank alone
            except Exception as error:
                errors.append(error)
        try:
            self._look_for_differences()
        except Exception as error:
            errors.append(error)
        if errors:
            raise errors[0]

    def hook_unfrozen(self) -> None:
        """Installs the hooks of parameters that were frozen before."""
        unfrozen = [item for item in self._unhooked if item[0].requires_grad]
        if unfrozen:
            self._unhooked = [item for item in self._unhooked if not item[0].requires_grad]
        for parameter, gradient in unfrozen:
            self._hook(parameter, gradient)

    def _add_bucket(self, parameters: list[Tensor], gradients: list[Gradient]) -> None:
        kind = SingleParameterBucket if len(parameters) == 1 else FusedBucket
        bucket = kind(parameters, gradients, self._options)
        bucket.begin_round(self._round.passes)
        self._buckets.append(bucket)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            self._unseen[gradient.name] = parameter, bucket
            self._unhooked.append((parameter, gradient))
        self.hook_unfrozen()

    def _members(self) -> Iterator[tuple[Bucket, Tensor, Gradient]]:
        for bucket in self._buckets:
            for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
                yield bucket, parameter, gradient

    def _check_agreement(self, groups: Iterable[Sequence[Tensor]], names: dict[Tensor, str]) -> None:
        options = self._options
        arguments = (
            f"op={options.op.name}, backward_passes_per_step={self._round.passes}"
            f", compression={compressor_name(options.compression)}, sparse_as_dense={options.sparse_as_dense}"
            f", nan_check={options.nan_check}, find_unused_parameters={options.find_unused_parameters}"
        )
        lines = [arguments, *descriptions_of(groups, names)]
        check_agreement(options.owner.name, lines, f"{self._prefix}agreement")

    def _look_for_differences(self) -> None:
        """Compares the ranks' weights before the first step in a job; equal ones stay equal."""
        if self._compared_in is self._job:
            return
        self._compared_in = self._job
        named = {gradient.name: parameter for _, parameter, gradient in self._members()}
        look_for_differences(
            self._options.owner.name,
            lambda: sums_of([named[name] for name in sorted(named)]),
            self._hyperparameters,
            f"{self._prefix}differences",
        )

    def _hook(self, parameter: Tensor, gradient: Gradient) -> None:
        alive = weakref.ref(self)  # the parameter owns the hook, and must not own the reducer

        def on_gradient(parameter: Tensor) -> None:
            reducer = alive()
            if reducer is None or reducer._paused:
                return
            if reducer._round.backward != current_backward():
                reducer._enter_backward()
            bucket = reducer._buckets[gradient.bucket_index]
            if bucket.count(gradient):
                launch = Reducer._launch if frame_callback() is None else _launch_eagerly
                launch(reducer, bucket, gradient)

        # Compiled autograd would trace the hook, and compute wrong gradients.
        parameter.register_post_accumulate_grad_hook(untraced(on_gradient))

    @eager
    def _enter_backward(self) -> None:
        """Called for the first gradient of a backward pass, and the first after a nested pass."""
        self.join()
        self._round.enter(current_backward())

    def _launch(self, bucket: Bucket, gradient: Gradient) -> None:
        """Called when a bucket's last gradient has come, or a gradient more often than expected."""
        if gradient.passes_left < 0 and (bucket.is_in_flight or not self._may_repeat()):
            raise InvalidArgumentError(
                f"backward() gave '{gradient.name}' more gradients than the {self._round.passes} that were expected "
                f"before it is averaged: {self._options.owner.when_repeated}. (Checkpointing counts twice with "
                "use_reentrant=True: use False. Set requires_grad to False where a pass needs no gradient.)"
            )
        if bucket.is_ready():
            self._send(bucket)
            self._after_launch()

    def _may_repeat(self) -> bool:
        """Whether a gradient that is not in flight may come once more than there are passes."""
        return False

    def _after_launch(self) -> None:
        """Called when backward has sent a bucket."""

    def _send(self, bucket: Bucket) -> None:
        assert self._job is not None
        try:
            if self._inspects:
                self._inspect(bucket)
            if self._job.size > 1:
                bucket.send(self._job.in_flight, self._round.step)
                self._in_flight.append(bucket)
            else:
                bucket.keep_own()
        except Exception as error:
            self._refuse(bucket.wire_names(), error)
            raise

    def _refuse(self, names: Iterable[str], error: Exception) -> None:
        """Tells the other ranks not to wait for these push_pulls of this rank in this round."""
        assert self._job is not None
        if not getattr(error, "counted", False):
            for name in names:
                self._job.in_flight.node.refuse(name, f"{type(error).__name__}: {error}", self._round.step)

    def _refuse_unsent(self, error: Exception) -> None:
        unsent = [bucket for bucket in self._buckets if not bucket.is_sent and bucket.is_due()]
        self._refuse([name for bucket in unsent for name in bucket.wire_names()], error)
        self._refuse([name_of_query(self._prefix)], error)

    def _inspect(self, bucket: Bucket) -> None:
        """Prepares and checks a bucket before it is sent."""
        if self._options.sparse_as_dense:
            densify(bucket.parameters)
        if self._nan_check is not None:
            self._nan_check.inspect(bucket)

    def _send_the_rest(self, errors: list[Exception]) -> list[Tensor]:
        """Sends what is due. Returns parameters that have a gradient on no rank."""
        due = self._due()
        query = self._ask()
        found = {} if query is None else self._learned(query)
        for bucket in due:
            if any(found.get(gradient.name, True) for gradient in bucket.gradients):
                self._send_collecting(bucket, errors)
        return self._unused(found)

    def _due(self) -> list[Bucket]:
        """Returns the buckets that backward has not sent as they are now."""
        due: list[Bucket] = []
        if len(self._in_flight) < len(self._buckets):
            due = [bucket for bucket in self._buckets if not bucket.is_in_flight and bucket.is_due()]
        if self._options.sparse_as_dense:
            for bucket in due:
                densify(bucket.parameters)
        return due

    def _send_collecting(self, bucket: Bucket, errors: list[Exception]) -> None:
        try:
            self._send(bucket)
        except Exception as error:  # other buckets are in flight, and must be waited for
            errors.append(error)

    def _ask(self) -> PresenceQuery | None:
        """Asks the other ranks about gradients that may be missing or sparse there, if any."""
        if self._job is None or self._job.size == 1:
            return None
        named = [(name, p) for name, (p, _) in self._unseen.items() if p.requires_grad]
        if self._options.find_unused_parameters:
            named = [(gradient.name, p) for _, p, gradient in self._members() if p.requires_grad]
        return PresenceQuery(named, self._prefix, self._round.step) if named else None

    def _learned(self, query: PresenceQuery) -> dict[str, Presence]:
        """Returns the answer by names of gradients, and tells the buckets."""
        found = query.result()
        for name in [name for name in self._unseen if found.get(name)]:
            _, bucket = self._unseen.pop(name)
            bucket.learn(found[name])
        return found

    def _unused(self, found: dict[str, Presence]) -> list[Tensor]:
        if all(found.values()):
            return []
        return [parameter for _, parameter, gradient in self._members() if not found.get(gradient.name, True)]

    def _wait(self, errors: list[Exception]) -> None:
        """Waits for all that is in flight, also after errors, so that the next round can begin."""
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
                bucket.fail()
            self._in_flight.popleft()
        if written:
            torch.autograd.graph.increment_version(written)

    def _expect_gradients(self) -> None:
        """Prepares the buckets for the next round."""
        for bucket in self._buckets:
            bucket.begin_round(self._round.passes)
        self.hook_unfrozen()


_launch_eagerly = eager(Reducer._launch)
