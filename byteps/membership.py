"""Changes of the ranks of an elastic job, which all ranks agree on at commits of their state."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType
from typing import NamedTuple

from byteps.errors import PeerLostError
from byteps.runtime import (
    commit,
    coordinator_failure,
    current_job,
    init,
    is_initialized,
    leave_others,
    note_state,
    shutdown,
)

__all__ = [
    "Change",
    "await_change",
    "change_at_commit",
    "enter_again",
    "failure",
    "is_elastic",
    "leave_when_told",
    "note_state",
]

log = logging.getLogger("byteps")

_PAUSE_S = 0.02  # between two commits of ranks that wait for a change

_told_to_end = threading.Event()  # by SIGTERM


class Change(NamedTuple):
    """What has changed at a commit."""

    has_newcomers: bool  # the state has to be broadcast


def change_at_commit() -> Change | None:
    """Enters the new membership if there is one. Collective: all ranks call it equally often.

    This process has the state of the training (`note_state`).

    Returns:
        None: nothing has changed. Otherwise this process has entered the new membership within this
        call: `rank` and `size` are the new ones.

    Raises:
        NotInitializedError: there is no job.
        SystemExit: this process was told to end (`leave_when_told`), and has left the others.
    """
    note_state()
    return _change()


def _change() -> Change | None:
    is_entered, has_newcomers = commit()
    if _told_to_end.is_set():
        log.warning("SIGTERM: this worker leaves after its step; the others go on")
        leave_others()
        raise SystemExit(128 + signal.SIGTERM)
    return Change(has_newcomers) if is_entered else None


def await_change() -> None:
    """Returns when the ranks have changed: after a loss they are numbered anew. Collective.

    For ranks that cannot go on without: the root of a broadcast is lost.

    Raises:
        PeerLostError: there is no coordinator, so they do not change any more.
    """
    while _change() is None:
        if why := coordinator_failure():
            raise PeerLostError(why)
        time.sleep(_PAUSE_S)


def is_elastic() -> bool:
    """Whether this process takes part in an elastic job."""
    return is_initialized() and current_job().config.elastic


def leave_when_told() -> None:
    """Makes SIGTERM end this process at its next commit, when it has finished its step.

    So machines that are needed for something else can be taken away: clusters send SIGTERM some
    time before SIGKILL. Does nothing if the program handles SIGTERM itself, outside of the main
    thread, and in jobs of fixed size, which end with every worker.
    """
    if not is_elastic() or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    _told_to_end.set()


def enter_again() -> None:
    """Joins the job again after an error that has failed it.

    Blocks until all processes have joined.
    """
    try:
        shutdown()
    except Exception as error:  # a pending operation has failed, like the job; it has been left
        log.debug("leaving the failed job: %s: %s", type(error).__name__, error)
    init()


def failure() -> str:
    """Returns why the job of this process has failed; "" if it has not, or if there is no job."""
    return current_job().node.failure() if is_initialized() else ""
