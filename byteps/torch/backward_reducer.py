"""The gradients of an optimizer or a module, from backward to where they are needed."""

from __future__ import annotations

import logging
from collections.abc import Callable
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

__all__ = ["BackwardReducer"]

log = logging.getLogger("byteps")

Tensor = torch.Tensor


class BackwardReducer(Reducer):
    """Sends gradients when backward has them, and waits for all of them at once.

    The end of a backward pass (sync "auto" and "backward"), the owner or the user waits. A gradient that comes again
    after its round makes another one: averages of what is the same on all ranks change nothing, so rounds may follow
    each other before a step.
    """

    def __init__(
        self, names: dict[Tensor, str], label: Callable[[], str], passes: int, options: ReducerOptions
    ) -> None:
        """As in the base class."""
        super().__init__(names, label, passes, options)
        self.rounds = 0  # since the last step or zero_grad
        self._inspects = self._inspects or options.op is not ReduceOp.Average
        self._passes_left = passes  # backward passes until the round ends by itself
        self._watched: set[int] = set()  # passes whose end will call back
        self._whole: int | None = None  # one of them, which has all others within it
        self._compiled = False  # the pass, by compiled autograd, which does not tell its end
        self.ended_early = False  # the last round, with the last gradient of a compiled pass
        self._not_launched = 0  # buckets that a compiled pass has yet to send
        self._warned: set[str] = set()

    @property
    def has_begun(self) -> bool:
        """Whether a round has begun and not ended."""
        return self._backward is not None or bool(self._watched)

    @property
    def waits_for_step(self) -> bool:
        """Whether nothing but a call of `synchronize` will end the round that compiled autograd has begun."""
        return self._compiled and self.has_begun

    def set_passes(self, passes: int) -> None:
        self.check_idle("set_backward_passes_per_step()")
        self._passes = passes
        self._begin_round()

    def begin_step(self) -> None:
        """Gradients that come from now on are of another step."""
        self.synchronized = False
        self.rounds = 0
        if self._options.op is not ReduceOp.Average:
            for bucket in self._buckets:
                bucket.reduced = False

    @eager
    @torch.no_grad()
    def synchronize(self) -> None:
        """Ends the round, unless no gradient has come since the last one.

        Raises:
            InvalidArgumentError: a gradient was changed while it was in flight.
            NotFiniteError: a gradient has a NaN, and `nan_check` asks.
            BytePSError: what the push_pull failed of.
        """
        if not self.synchronized:
            self.rounds += 1
            self.complete()

    @torch.no_grad()
    def abandon(self) -> None:
        """Drops what a backward pass that failed has sent. What the other ranks wait for in this step fails."""
        why = AbortedError("an exception has ended this rank's backward pass")
        self._refuse_unsent(why)
        self._wait([])
        if self._nan_check is not None:
            self._refuse([name_of_report(self.prefix)], why)
            self._nan_check.forget()
        self._begin_round()
        self._step_number += 1

    def watch_backward(self) -> None:
        """From a hook: the round ends with this backward pass, whatever passes it has within it.

        If no gradient comes in it, nothing is sent.
        """
        backward = current_backward()
        if backward not in self._watched and not is_compiled():
            self._whole = backward
            self._watch(backward, nested=False)

    @eager
    def _enter_backward(self) -> None:
        super()._enter_backward()
        backward = current_backward()
        if self._options.sync == "step" or backward in self._watched or self._whole is not None:
            return
        self._compiled, self.ended_early = is_compiled(), False
        if self._compiled:
            self._not_launched = sum(bucket.is_due(self._passes) for bucket in self._buckets)
            if self._options.sync == "backward":
                self._warn(
                    "compiled autograd does not tell the end of backward: gradients are those of all ranks when the "
                    "last parameter has its own; where one gets none, optimizer.step() waits, and gradients must not "
                    "be touched before it without optimizer.synchronize()"
                )
        else:
            self._watch(backward, is_nested())

    def _watch(self, backward: int, nested: bool) -> None:
        self._watched.add(backward)
        at_end_of_backward(partial(self._leave_backward, backward, nested))

    @eager
    @torch.no_grad()
    def _leave_backward(self, backward: int, nested: bool) -> None:
        if backward not in self._watched:
            return
        if backward == self._whole and self._backward is None:
            self._begin_round()  # torch.autograd.grad, which leaves parameters alone
            return
        self._watched.discard(backward)
        self._backward = None
        if not nested:
            self._passes_left -= 1
        if self._passes_left <= 0:
            self.synchronize()
            self._advise()
        else:
            self._wait_for_the_sent()

    def _wait_for_the_sent(self) -> None:
        """Before a pass that adds to gradients."""
        errors: list[Exception] = []
        sent = list(self._in_flight)
        self._wait(errors)
        for bucket in sent:
            bucket.expect(self._passes)
        if errors:
            raise errors[0]

    def _may_repeat(self) -> bool:
        return self._backward in self._watched

    def _after_launch(self) -> None:
        if self._compiled:
            self._not_launched -= 1
            if self._not_launched == 0:
                self.ended_early = True
                self.synchronize()

    def _inspect(self, bucket: Bucket) -> None:
        if bucket.reduced and self._options.op is not ReduceOp.Average:
            raise InvalidArgumentError(
                f"'{bucket.name}' got another gradient after its {self._options.op.name} over the ranks: set "
                "backward_passes_per_step to the number of backward passes, use op=Average, or sync='step' if each "
                "parameter gets one gradient a step; between steps call optimizer.zero_grad()"
            )
        super()._inspect(bucket)

    def _begin_round(self) -> None:
        super()._begin_round()
        self._watched.clear()
        self._whole = None
        self._compiled = False
        self._passes_left = self._passes

    def _advise(self) -> None:
        if self.rounds == 2 and self._options.owner.when_averaged_twice:
            self._warn(
                f"'{self._buckets[0].name}' and the optimizer's other gradients were averaged after each of two "
                f"backward passes before a step. The result is right; {self._options.owner.when_averaged_twice}"
            )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message)
