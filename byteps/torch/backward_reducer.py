"""The reducer of DistributedOptimizer and DistributedDataParallel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch

from byteps.errors import AbortedError, InvalidArgumentError
from byteps.ops import ReduceOp
from byteps.torch.backward_end import at_end_of_backward, current_backward, is_compiled, is_nested
from byteps.torch.bucket import Bucket
from byteps.torch.eager import eager
from byteps.torch.nan_check import name_of_report
from byteps.torch.options import ReducerOptions
from byteps.torch.reducer import Reducer
from byteps.torch.round import PassEnd, RoundState

__all__ = ["BackwardReducer"]

log = logging.getLogger("byteps")

Tensor = torch.Tensor


class BackwardReducer(Reducer):
    """Waits for all gradients at once: at the end of backward, or in `synchronize`.

    A gradient that comes again after its round makes another round. Averaging what is the same on
    all ranks changes nothing, so there may be several rounds before a step.
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
        """See the base class."""
        super().__init__(names, label, passes, options, hyperparameters=hyperparameters, on_join=on_join)
        self._reduces_once = options.op is not ReduceOp.Average  # in each step
        self._inspects = self._inspects or self._reduces_once
        self._reduced: set[Bucket] = set()  # since the last step, if `_reduces_once`
        self._warned: set[str] = set()  # messages

    @property
    def is_in_backward(self) -> bool:
        """Whether a backward pass has begun and not ended. Stays True if the pass raises."""
        return self._round.is_in_backward

    @property
    def waits_for_step(self) -> bool:
        """Whether only `synchronize` will end the round that compiled autograd has begun."""
        return self._round.state is RoundState.COUNTING

    def set_passes(self, passes: int) -> None:
        self.check_idle("set_backward_passes_per_step()")
        self._round.set_passes(passes)
        self._expect_gradients()

    def begin_step(self) -> None:
        super().begin_step()
        self._reduced.clear()

    def acknowledge_early_end(self) -> bool:
        """Whether the last gradient of a compiled pass has ended the round. True once for a round.

        Other ranks, whose pass gave fewer gradients, have to call `synchronize` then.
        """
        return self._round.acknowledge_early_end()

    @eager
    @torch.no_grad()
    def synchronize(self) -> None:
        """Ends the round, unless no gradient has come since the last one.

        Raises:
            InvalidArgumentError: a gradient was changed while it was in flight.
            NotFiniteError: `nan_check` is on, and a gradient has a NaN or an infinity.
            BytePSError: a push_pull has failed.
        """
        if not self._round.is_synchronized:
            self.complete()

    @torch.no_grad()
    def abandon(self) -> None:
        """Drops the gradients of a backward pass that has raised. Other ranks' push_pulls fail."""
        why = AbortedError("an exception has ended this rank's backward pass")
        self._refuse_unsent(why)
        self._wait([])
        if self._nan_check is not None:
            self._refuse([name_of_report(self._prefix)], why)
            self._nan_check.forget()
        self._round.abandon()
        self._expect_gradients()

    def watch_backward(self) -> None:
        """From a hook: ends the round with this backward pass and all passes nested in it.

        If the pass gives no gradient, nothing is sent.
        """
        backward = current_backward()
        if not self._round.is_reported(backward) and not is_compiled():
            self._watch(backward, nested=False, outermost=True)

    @eager
    def _enter_backward(self) -> None:
        super()._enter_backward()
        backward = current_backward()
        if self._options.sync == "step" or self._round.is_watched(backward):
            return
        if not is_compiled():
            self._watch(backward, nested=is_nested(), outermost=False)
            return
        self._round.count(sum(bucket.is_due() for bucket in self._buckets))
        if self._options.sync == "backward":
            self._warn(
                "compiled autograd does not report the end of backward: gradients are those of all ranks when the last "
                "parameter has its own. If one gets none, optimizer.step() waits, and gradients must not be touched "
                "before it without optimizer.synchronize()"
            )

    def _watch(self, backward: int, *, nested: bool, outermost: bool) -> None:
        self._round.watch(backward, outermost=outermost)
        at_end_of_backward(partial(self._leave_backward, backward, nested))

    @eager
    @torch.no_grad()
    def _leave_backward(self, backward: int, nested: bool) -> None:
        match self._round.leave(backward, nested=nested):
            case PassEnd.EMPTY:  # torch.autograd.grad, which gives no parameter a gradient
                self._round.reset()
                self._expect_gradients()
            case PassEnd.MORE_PASSES:
                self._wait_for_sent()
            case PassEnd.LAST_PASS:
                self.synchronize()
                self._advise()

    def _wait_for_sent(self) -> None:
        """Waits for the buckets that were sent, because the next pass adds to their gradients."""
        errors: list[Exception] = []
        sent = list(self._in_flight)
        self._wait(errors)
        for bucket in sent:
            bucket.expect_gradients()
        if errors:
            raise errors[0]

    def _wait(self, errors: list[Exception]) -> None:
        if self._reduces_once:
            self._reduced.update(self._in_flight)
        super()._wait(errors)

    def _may_repeat(self) -> bool:
        return self._round.backward is not None and self._round.is_reported(self._round.backward)

    def _after_launch(self) -> None:
        if self._round.sent_one():
            self.synchronize()

    def _inspect(self, bucket: Bucket) -> None:
        if bucket in self._reduced:
            raise InvalidArgumentError(
                f"'{bucket.name}' got another gradient after its {self._options.op.name} over the ranks: set "
                "backward_passes_per_step to the number of backward passes, use op=Average, or sync='step' if each "
                "parameter gets one gradient a step; between steps call optimizer.zero_grad()"
            )
        super()._inspect(bucket)

    def _advise(self) -> None:
        if self._round.completed_since_step == 2 and self._options.owner.when_averaged_twice:
            self._warn(
                f"'{self._buckets[0].name}' and the optimizer's other gradients were averaged after each of two "
                f"backward passes before a step. The result is right; {self._options.owner.when_averaged_twice}"
            )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message)
