"""Runs a training function again whenever the ranks of the job have changed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from byteps import membership
from byteps.elastic.state import HorovodInternalError, HostsUpdatedInterrupt, State
from byteps.errors import ArgumentTypeError

__all__ = ["run", "run_fn"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=State)

log = logging.getLogger("byteps")


def run(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorator of the training function, whose first argument is a `State`.

        @bps.elastic.run
        def train(state):
            while state.batch < batches:
                ...
                state.batch += 1
                state.commit()

    The state is made the same on all ranks before the function begins. When the ranks have changed
    at a commit, the function is left, the state's reset callbacks are called, the state is
    broadcast if there are new ranks, and the function begins again with the state as it is. If the
    job has failed, the state is restored to the last commit, and this process joins the job again.

    The program must not communicate between `init` and this function, as new ranks would do so
    alone.

    Args:
        func: called with the state and further arguments; its result is the result.

    Raises:
        ArgumentTypeError: the first argument is not a State.
    """
    return run_fn(func, membership.enter_again)


def run_fn(func: Callable[Concatenate[S, P], R], reset: Callable[[], object]) -> Callable[Concatenate[S, P], R]:
    """`run` with another function that joins the job again after a failure.

    Unlike Horovod, `reset` is not called when ranks have come or gone: this process is in the new
    membership by then.
    """

    @functools.wraps(func)
    def wrapper(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        if not isinstance(state, State):
            name = getattr(func, "__name__", "the training function")
            raise ArgumentTypeError(f"{name}: the first argument is {type(state).__name__}: expected a State")
        membership.leave_when_told()
        sync = state.sync
        while True:
            try:
                sync()
                membership.note_state()
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt as interrupt:
                has_failed, sync = False, state.sync_after_loss if interrupt.skip_sync else state.sync
            except Exception as error:
                if not _has_failed_job(error):
                    raise
                log.warning("going back to the last commit: %s: %s", type(error).__name__, error)
                has_failed, sync = True, state.sync
            # Not in the handler of the exception: other ranks would take it for the reason why this
            # one leaves the job.
            if has_failed:
                state.restore()
                # In an elastic job that goes on, the root of a broadcast was lost, for all ranks alike.
                goes_on = membership.is_elastic() and not membership.failure()
                membership.await_change() if goes_on else reset()
            state.on_reset()

    return cast(Callable[Concatenate[S, P], R], wrapper)


def _has_failed_job(error: Exception) -> bool:
    """Whether the job has failed: frameworks raise errors of their own instead of byteps's."""
    return isinstance(error, HorovodInternalError) or bool(membership.failure())
