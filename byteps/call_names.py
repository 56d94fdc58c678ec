"""Names and numbers of calls that belong together because all ranks make them in the same order."""

from __future__ import annotations

import threading
from collections.abc import Callable

from byteps import _core

__all__ = ["AUTOMATIC_NAMES", "UNNAMED", "CallNames"]

# Number of automatic names of a family, which are then reused.
AUTOMATIC_NAMES = _core.AUTOMATIC_NAMES
UNNAMED = "byteps.unnamed"  # the family of tensors to which the user gives no name


class CallNames:
    """The families of names of one job. All methods are thread-safe."""

    def __init__(self) -> None:
        self._families: dict[str, _core.NameFamily] = {}
        self.on_release_of: dict[str, list[Callable[[], object]]] = {}  # see `on_release`
        self._lock = threading.RLock()  # guards `on_release_of`; a signal's handler may release, too

    def family(self, family: str) -> _core.NameFamily:
        """Returns the names and numbers of a family."""
        known = self._families.get(family)
        return known or self._families.setdefault(family, _core.NameFamily(family))

    def next_number(self, family: str) -> int:
        """Returns the next number of a family, from 1, modulo 2**32."""
        return self.family(family).next_number()

    def next_name(self, family: str) -> str:
        """Returns the next name of a bounded cycle of names.

        The name does not depend on the tensor: the n-th unnamed tensors of all ranks belong
        together, and the program must use them in the same order on all ranks. Waits if the name is
        reserved.
        """
        names = self.family(family)
        name = names.next_name()
        if names.is_reserved(name):
            released = threading.Event()
            self.on_release(name, released.set)
            released.wait()
        return name

    def reserve(self, name: str) -> None:
        """Makes `next_name` wait before it returns the name again, until `release`."""
        self._family_of(name).reserve(name)

    def release(self, name: str) -> None:
        """Ends the reservation of a name."""
        self._family_of(name).release(name)
        with self._lock:
            callbacks = self.on_release_of.pop(name, ())
        for callback in callbacks:
            callback()

    def reserved(self, family: str) -> list[str]:
        """Returns the names of a family that are reserved."""
        return self.family(family).reserved()

    def on_release(self, name: str, callback: Callable[[], object]) -> None:
        """Calls `callback` when the name is released, at once if it is not reserved."""
        with self._lock:
            self.on_release_of.setdefault(name, []).append(callback)
        if not self._family_of(name).is_reserved(name):
            self.release(name)

    def _family_of(self, name: str) -> _core.NameFamily:
        return self.family(name.rpartition(".")[0])
