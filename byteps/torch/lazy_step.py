"""An optimizer's step that is applied bucket by bucket, as gradients arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from itertools import takewhile
from typing import Any

import torch

from byteps.errors import InvalidArgumentError
from byteps.torch.bucket import Bucket, changed_in_flight
from byteps.torch.eager import eager
from byteps.torch.options import ReducerOptions
from byteps.torch.presence import PresenceQuery
from byteps.torch.reducer import Reducer
from byteps.torch.states import transition
from byteps.torch.values import hyperparameters_of

__all__ = ["LazyStep", "StepState"]

Tensor = torch.Tensor
Received = tuple[Bucket, Sequence[Tensor | None]]


class StepState(Enum):
    """States of the optimizer's last step."""

    COMPLETE = auto()  # all parameters are up to date
    PENDING = auto()  # parameters may be out of date, or have not been used since they were
    APPLYING = auto()  # the optimizer's code runs for some of the parameters
    FAILED = auto()  # parameters stay out of date: a gradient or the optimizer's code has failed


class LazyStep(Reducer):
    """Reduces the gradients of an optimizer, and applies its step when parameters are needed.

    After `begin` the step is *pending*: `update_before_use` and `flush` change parameters bucket by
    bucket, by the optimizer's own code, with the options (learning rate and so on) that the
    optimizer had at `begin`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        step: Callable[[torch.optim.Optimizer], Any],
        names: dict[Tensor, str],
        label: Callable[[], str],
        passes: int,
        options: ReducerOptions,
    ) -> None:
        """Makes one without parameters; see `add`.

        Args:
            optimizer: one that changes each parameter by that parameter's own gradient and state.
            step: the step method of its class, without hooks.
            names: see the base class; so are the rest.
            label: see `names`.
            passes: see `names`.
            options: with `sparse_as_dense`, because nothing here waits for the numbers of rows.
        """
        super().__init__(names, label, passes, options, hyperparameters=lambda: hyperparameters_of(optimizer))
        assert options.sparse_as_dense
        self._optimizer = optimizer
        self._step = step
        self._bucket_of: dict[Tensor, Bucket] = {}
        self._group_of: dict[Tensor, int] = {}
        self._step_state = StepState.COMPLETE
        self._pending: dict[Bucket, None] = {}  # deferred buckets, in the order of forward
        self._group_options: list[dict[str, Any]] = []  # at `begin`
        self._unused_since: set[Tensor] = set()  # which no pre-hook has waited for since `begin`
        self._query: PresenceQuery | None = None  # about the gradients of the pending step
        self._without_gradient: set[Tensor] = set()  # on any rank, as it was answered
        self._failure: Exception | None = None  # in FAILED

    @property
    def is_pending(self) -> bool:
        """Whether parameters are older than the program thinks."""
        return bool(self._pending)

    @property
    def is_complete(self) -> bool:
        """Whether `update_before_use` would do nothing."""
        return self._step_state is StepState.COMPLETE

    @property
    def is_applying(self) -> bool:
        """Whether the optimizer's code runs for some of its parameters."""
        return self._step_state is StepState.APPLYING

    def add(self, parameters: Sequence[Tensor], fallback_names: Sequence[str]) -> None:
        """See the base class. The parameters are in the optimizer's groups already."""
        super().add(parameters, fallback_names)
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        self._group_of = {p: index for index, group in enumerate(self._optimizer.param_groups) for p in group["params"]}
        self._prioritize()

    def bucket_of(self, parameter: Tensor) -> Bucket | None:
        return self._bucket_of.get(parameter)

    @torch.no_grad()
    def begin(self) -> bool:
        """The program calls step(): all gradients are sent when this returns.

        Returns:
            Whether the step is pending. If not, each .grad is that of all ranks, and the optimizer
            can make the step.

        Raises:
            InvalidArgumentError: gradients were changed since backward sent them.
        """
        self.join()
        if self._round.is_synchronized:
            return False
        self._check_hooks_ran(self._buckets)
        self.flush()
        self._look_for_differences()
        for bucket in self._in_flight:
            if not bucket.is_in_place() or not bucket.is_unwritten():
                raise changed_in_flight(bucket)
        due = self._due()
        self._query, self._without_gradient = self._ask(), set()
        for bucket in due:
            self._send(bucket)
        self._group_options = [_options_of(group) for group in self._optimizer.param_groups]
        self._pending = dict.fromkeys(bucket for bucket in self._buckets if bucket.is_in_flight)
        self._in_flight.clear()
        for bucket in self._pending:
            bucket.defer()
        if self._pending:
            self._unused_since = set(self._bucket_of)
            self._step_state = transition(self._step_state, (StepState.COMPLETE,), StepState.PENDING)
        self._round.defer()
        self._expect_gradients()
        return self.is_pending

    def update_before_use(self, parameters: Iterable[Tensor], buckets: Iterable[Bucket]) -> None:
        """Brings `parameters`, which are in `buckets`, up to date."""
        self._need(buckets)
        self._unused_since.difference_update(parameters)
        self._complete_if_used()

    def flush(self) -> None:
        """Applies all that is pending. Waits for the gradients.

        Raises:
            BytePSError: a push_pull has failed, now or before.
        """
        self._need(list(self._pending))
        self._unused_since.clear()
        self._complete_if_used()

    @eager
    @torch.no_grad()
    def synchronize(self) -> None:
        """Makes each .grad that of all ranks for the next step. Waits for what is pending."""
        if not self._round.is_synchronized:
            self._check_hooks_ran(self._buckets)
            self.flush()
            self.complete()

    def detach_gradients(self, set_to_none: bool) -> None:
        """Does zero_grad() for parameters whose gradients are in flight for the pending step."""
        for bucket in self._pending:
            for parameter in bucket.parameters:
                if parameter.grad is not None:
                    parameter.grad = None if set_to_none else torch.zeros_like(parameter)

    def _complete_if_used(self) -> None:
        if self._step_state is StepState.PENDING and not self._unused_since:
            self._step_state = StepState.COMPLETE

    def _inspect(self, bucket: Bucket) -> None:
        self._check_hooks_ran([bucket])
        super()._inspect(bucket)

    def _check_hooks_ran(self, buckets: Iterable[Bucket]) -> None:
        """Raises InvalidArgumentError if a parameter has a gradient, but no hook has waited for it.

        Forward may have used it before its step. Whether it has depends on how fast gradients have
        arrived; the exception must not.
        """
        if not self._unused_since:
            return
        for bucket in buckets:
            for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
                if gradient.passes_left < self._round.passes and parameter in self._unused_since:
                    raise InvalidArgumentError(
                        f"CrossBarrier: '{self._names[parameter]}' was used without a call of the module that owns it, "
                        "so nothing has waited for the last step to change it: call optimizer.flush() before the "
                        "forward pass, or use DistributedOptimizer"
                    )

    def _prioritize(self) -> None:
        """Sets priorities: buckets that forward needs first go first, except backward's first ones.

        These, up to a quarter of the bytes, go in backward's order. Ranks are never quite together:
        by priority, ranks that are ahead would leave buckets that a late rank still sends for
        others that it does not have yet, and no bucket would be complete until it has. While the
        first quarter is sent, all ranks reach the end of backward.
        """
        by_need = sorted(self._buckets, key=lambda bucket: self._positions.get(bucket.parameters[0], len(self._names)))
        nbytes = [sum(parameter.nbytes for parameter in bucket.parameters) for bucket in by_need]
        first_part = sum(nbytes) / 4
        for index in reversed(range(len(by_need))):
            first_part -= nbytes[index]
            by_need[index].set_priority(0 if first_part >= 0 else -1 - index)

    def _need(self, buckets: Iterable[Bucket]) -> None:
        """Waits for the pending ones of `buckets`, and applies the step to all that has come."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        wanted = [bucket for bucket in buckets if bucket in self._pending]
        if not wanted:
            return
        try:
            received = [self._taken(bucket) for bucket in wanted]
            # One call of the optimizer for many buckets costs less. Those behind one that has not
            # come are not polled.
            received += [self._taken(bucket) for bucket in list(takewhile(Bucket.is_done, self._pending))]
            self._apply(received)
        except Exception as error:
            self._failure = error  # nothing may go on with parameters that are out of date
            self._step_state = transition(self._step_state, (StepState.PENDING, StepState.APPLYING), StepState.FAILED)
            raise

    @torch.no_grad()
    def _taken(self, bucket: Bucket) -> Received:
        del self._pending[bucket]
        written: list[Tensor] = []
        try:
            gradients = bucket.receive_deferred(written)
        except Exception:
            bucket.fail()
            raise
        torch.autograd.graph.increment_version(written)
        return bucket, gradients

    def _apply(self, received: list[Received]) -> None:
        if self._query is not None:
            self._without_gradient = set(self._unused(self._learned(self._query)))
            self._query = None
        parameters: dict[int, list[Tensor]] = {}
        # .grad, which may belong to the next step already.
        kept: list[tuple[Tensor, Tensor | None]] = []
        for bucket, gradients in received:
            for parameter, gradient in zip(bucket.parameters, gradients, strict=True):
                if parameter in self._without_gradient:
                    parameter.grad = None if parameter.grad is gradient else parameter.grad
                elif parameter.requires_grad:
                    kept.append((parameter, parameter.grad))
                    parameter.grad = gradient
                    parameters.setdefault(self._group_of[parameter], []).append(parameter)
        groups = [{**self._group_options[index], "params": members} for index, members in sorted(parameters.items())]
        before = self._step_state
        self._step_state = transition(before, (StepState.PENDING, StepState.APPLYING), StepState.APPLYING)
        try:
            with _replaced_groups(self._optimizer, groups), _plain_mode():
                self._step(self._optimizer)
        finally:
            self._step_state = before
            for parameter, grad in kept:
                parameter.grad = grad
        self._keep_changed_options(dict(zip(sorted(parameters), groups, strict=True)))

    def _keep_changed_options(self, groups: dict[int, dict[str, Any]]) -> None:
        """Writes back options that the optimizer has changed: it may count steps in its groups."""
        for index, group in groups.items():
            for key, value in group.items():
                if key != "params" and value is not self._group_options[index].get(key):
                    self._optimizer.param_groups[index][key] = value


def _options_of(group: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy, because schedulers change options after the step, some of them in place."""
    return {
        key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"
    }


@contextmanager
def _replaced_groups(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> Iterator[None]:
    own, optimizer.param_groups = optimizer.param_groups, groups
    try:
        yield
    finally:
        optimizer.param_groups = own


@contextmanager
def _plain_mode() -> Iterator[None]:
    """Disables autocast and inference mode, in which the forward pass may run."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if not kinds and not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield
