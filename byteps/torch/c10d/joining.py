"""Joins a group's own job in a thread, so that no other group waits for its ranks."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import ClassVar

from byteps.runtime import Job

__all__ = ["Joining"]

_GRACE_PERIOD_S = 5.0  # for the thread to notice that it must end


class Joining:
    """One attempt to join a job."""

    _running: ClassVar[set[Joining]] = set()
    _at_exit_registered = False

    def __init__(
        self, join: Callable[[], Job], joined: Callable[[Job], None], failed: Callable[[Exception], None]
    ) -> None:
        """Makes an attempt that `start` begins.

        Args:
            join: blocks; raises soon after `is_given_up` has become True.
            joined: called with what `join` returns, in the same thread.
            failed: called with what `join` raises, in the same thread.
        """
        self._join = join
        self._joined = joined
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name="byteps-join", daemon=True)
        self.is_given_up = False

    def start(self) -> None:
        if not Joining._at_exit_registered:
            Joining._at_exit_registered = True
            # The interpreter cannot exit while a thread is in torch's store.
            atexit.register(_give_all_up)
        Joining._running.add(self)
        self._thread.start()

    def give_up(self) -> None:
        """Ends the thread. Waits for it, at most for the grace period."""
        self.is_given_up = True
        if self._thread is not threading.current_thread():
            self._thread.join(_GRACE_PERIOD_S)

    def _run(self) -> None:
        try:
            job = self._join()
        except Exception as error:
            self._failed(error)
        else:
            self._joined(job)
        finally:
            Joining._running.discard(self)


def _give_all_up() -> None:
    for joining in list(Joining._running):
        joining.give_up()
