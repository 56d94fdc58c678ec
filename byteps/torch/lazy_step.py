"""One step of an optimizer, carried out part by part as gradients arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch

from byteps.errors import InvalidArgumentError
from byteps.torch.bucket import Bucket, changed_in_flight
from byteps.torch.eager import eager
from byteps.torch.options import ReducerOptions
from byteps.torch.presence import PresenceQuery
from byteps.torch.reducer import Reducer
from byteps.torch.values import hyperparameters_of

__all__ = ["LazyStep"]

Tensor = torch.Tensor
Received = tuple[Bucket, Sequence[Tensor | None]]


class LazyStep(Reducer):
    """Sends the gradients of an optimizer, and has what it has yet to do of its last step.

    After `begin`, the step is *pending*: `update_before_use` and `flush` change parameters bucket by bucket, by the
    optimizer's own code, with the options (learning rate and so on) that the optimizer had at `begin`.
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
            optimizer: which changes each parameter by that parameter's own gradient and state.
            step: the step method of its class, without hooks.
            names: as in the base class, like the rest.
            label: makes the prefix of the names that ranks meet under.
            passes: backward passes for a step.
            options: which make sparse gradients dense: nothing waits here for the numbers of rows.
        """
        super().__init__(names, label, passes, options)
        assert options.sparse_as_dense
        self.hyperparameters = lambda: hyperparameters_of(optimizer)
        self.applying = False  # the optimizer's code runs for a part of its parameters
        self._optimizer = optimizer
        self._step = step
        self._bucket_of: dict[Tensor, Bucket] = {}
        self._group_of: dict[Tensor, int] = {}
        self._pending: dict[Bucket, None] = {}  # in the order of the next forward pass
        self._group_options: list[dict[str, Any]] = []  # at `begin`
        self._awaiting_hook: set[Tensor] = set()  # which nothing has waited for in the forward pass as yet
        self._query: PresenceQuery | None = None  # about the gradients of the pending step
        self._without_gradient: set[Tensor] = set()  # on all ranks: its answer
        self._failure: Exception | None = None

    @property
    def pending(self) -> bool:
        """Whether parameters are older than the program thinks."""
        return bool(self._pending)

    @property
    def idle(self) -> bool:
        """Whether `update_before_use` would do nothing."""
        return not self._awaiting_hook and not self._pending and self._failure is None

    def add(self, parameters: Sequence[Tensor], fallback_names: Sequence[str]) -> None:
        """As in the base class; of the optimizer's groups as they are now."""
        super().add(parameters, fallback_names)
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        self._group_of = {p: index for index, group in enumerate(self._optimizer.param_groups) for p in group["params"]}
        self._prioritize()

    def bucket_of(self, parameter: Tensor) -> Bucket | None:
        return self._bucket_of.get(parameter)

    @torch.no_grad()
    def begin(self) -> bool:
        """The program's call of step(): all gradients are on their way when it returns.

        Returns:
            Whether the step is pending. If not, .grad is that of all ranks, and the optimizer can make the step.

        Raises:
            InvalidArgumentError: gradients were changed since backward sent them.
        """
        self.join()
        if self.synchronized:
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
        self._pending = dict.fromkeys(bucket for bucket in self._buckets if bucket.handle is not None)
        self._in_flight.clear()
        self._awaiting_hook = set(self._bucket_of) if self._pending else set()
        self._begin_round()
        self._step_number += 1
        return self.pending

    def update_before_use(self, parameters: Iterable[Tensor], buckets: Iterable[Bucket]) -> None:
        """Before the use of `parameters`, which are in `buckets`."""
        self._need(buckets)
        self._awaiting_hook.difference_update(parameters)

    def flush(self) -> None:
        """Carries out what is pending. Waits for the gradients.

        Raises:
            BytePSError: what a push_pull failed of, now or before.
        """
        self._need(list(self._pending))
        self._awaiting_hook.clear()

    @eager
    @torch.no_grad()
    def synchronize(self) -> None:
        """Waits for the gradients of the step to come, and puts the averages into .grad; nothing is pending then."""
        if not self.synchronized:
            self._check_hooks_ran(self._buckets)
            self.flush()
            self.complete()

    def detach_gradients(self, set_to_none: bool) -> None:
        """zero_grad() for parameters whose gradients are in use still."""
        for bucket in self._pending:
            for parameter in bucket.parameters:
                if parameter.grad is not None:
                    parameter.grad = None if set_to_none else torch.zeros_like(parameter)

    def _inspect(self, bucket: Bucket) -> None:
        self._check_hooks_ran([bucket])
        super()._inspect(bucket)

    def _check_hooks_ran(self, buckets: Iterable[Bucket]) -> None:
        """Raises InvalidArgumentError if backward has come to a parameter that forward could use before its step.

        Whether its step was still pending depends on how fast gradients have come; the exception must not.
        """
        if not self._awaiting_hook:
            return
        for bucket in buckets:
            for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
                if gradient.left < self._passes and parameter in self._awaiting_hook:
                    raise InvalidArgumentError(
                        f"CrossBarrier: '{self._names[parameter]}' was used without a call of the module that owns it, "
                        "so nothing has waited for the last step to change it: call optimizer.flush() before the "
                        "forward pass, or use DistributedOptimizer"
                    )

    def _prioritize(self) -> None:
        """What forward needs first goes first, but for up to a quarter of the bytes, which backward gives before all.

        Those go in the order in which they come. Ranks are never quite together: those that are ahead would leave this
        first part, which a late one still sends, for something that it does not have yet, and nothing would be complete
        until it has. While the first part travels, all reach the end of backward.
        """
        by_need = sorted(self._buckets, key=lambda bucket: self._positions.get(bucket.parameters[0], len(self._names)))
        nbytes = [sum(parameter.nbytes for parameter in bucket.parameters) for bucket in by_need]
        first_part = sum(nbytes) / 4
        for index in reversed(range(len(by_need))):
            first_part -= nbytes[index]
            by_need[index].priority = 0 if first_part >= 0 else -1 - index

    def _need(self, buckets: Iterable[Bucket]) -> None:
        """Waits for the pending ones of the buckets, and carries out the step for them and for what else has come."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        wanted = [bucket for bucket in buckets if bucket in self._pending]
        if not wanted:
            return
        try:
            received = [self._taken(bucket) for bucket in wanted]
            # In one call with others the optimizer costs less. The rest comes later than the first that is not there.
            received += [self._taken(bucket) for bucket in list(takewhile(Bucket.is_done, self._pending))]
            self._apply(received)
        except Exception as error:
            self._failure = error  # the parameters are not what they should be: nothing may go on with them
            raise

    @torch.no_grad()
    def _taken(self, bucket: Bucket) -> Received:
        del self._pending[bucket]
        written: list[Tensor] = []
        gradients = bucket.receive(written)
        torch.autograd.graph.increment_version(written)
        return bucket, gradients

    def _apply(self, received: list[Received]) -> None:
        if self._query is not None:
            self._without_gradient = set(self._unused(self._learned(self._query)))
            self._query = None
        parameters: dict[int, list[Tensor]] = {}
        kept: list[tuple[Tensor, Tensor | None]] = []  # .grad, which may be of the next step already
        for bucket, gradients in received:
            for parameter, gradient in zip(bucket.parameters, gradients, strict=True):
                if parameter in self._without_gradient:
                    parameter.grad = None if parameter.grad is gradient else parameter.grad
                elif parameter.requires_grad:
                    kept.append((parameter, parameter.grad))
                    parameter.grad = gradient
                    parameters.setdefault(self._group_of[parameter], []).append(parameter)
        groups = [{**self._group_options[index], "params": members} for index, members in sorted(parameters.items())]
        self.applying = True
        try:
            with _replaced_groups(self._optimizer, groups), _plain_mode():
                self._step(self._optimizer)
        finally:
            self.applying = False
            for parameter, grad in kept:
                parameter.grad = grad
        self._keep_changed_options(dict(zip(sorted(parameters), groups, strict=True)))

    def _keep_changed_options(self, groups: dict[int, dict[str, Any]]) -> None:
        """Optimizers may count in their groups."""
        for index, group in groups.items():
            for key, value in group.items():
                if key != "params" and value is not self._group_options[index].get(key):
                    self._optimizer.param_groups[index][key] = value


def _options_of(group: dict[str, Any]) -> dict[str, Any]:
    """A copy: schedulers change the learning rate after the step, some of them in place."""
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
    """As where optimizers step: a forward pass may run under autocast or in inference mode."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if not kinds and not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield
