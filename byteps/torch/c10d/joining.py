"""The thread on which a group joins a job of its own, so that nobody's collectives wait for another group's ranks."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import ClassVar

from byteps.runtime import Job

__all__ = ["Joining"]

_PATIENCE_S = 5.0  # more than a thread needs to see that it is to end


class Joining:
    """One attempt to join a job."""

    _under_way: ClassVar[set[Joining]] = set()
    _at_exit_registered = False

    def __init__(
        self, join: Callable[[], Job], joined: Callable[[Job], None], failed: Callable[[Exception], None]
    ) -> None:
        """`join` blocks, and raises soon once `is_given_up`; then one of the others is called, on the same thread."""
        self._join = join
        self._joined = joined
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name="byteps-join", daemon=True)
        self.is_given_up = False

    def start(self) -> None:
        if not Joining._at_exit_registered:
            Joining._at_exit_registered = True
            atexit.register(_give_all_up)  # Python cannot end well while a thread is in torch's store
        Joining._under_way.add(self)
        self._thread.start()

    def give_up(self) -> None:
        """Returns when the thread has ended, or after a while."""
        self.is_given_up = True
        if self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        try:
            job = self._join()
        except Exception as error:
            self._failed(error)
        else:
            self._joined(job)
        finally:
            Joining._under_way.discard(self)


def _give_all_up() -> None:
    for joining in list(Joining._under_way):
        joining.give_up()
