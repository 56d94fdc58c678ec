"""Names and numbers of calls that belong together because all ranks make them in the same order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

__all__ = ["AUTOMATIC_NAMES", "UNNAMED", "CallNames"]

# Number of automatic names, which are then reused, so that unnamed tensors do not declare new names
# forever. At most so many unnamed tensors can be in flight.
AUTOMATIC_NAMES = 256
UNNAMED = "byteps.unnamed"  # the family of tensors to which the user gives no name


class _Counters(dict[str, "count[int]"]):
    """A counter from 0 for each family. `next` of one is atomic, as it runs no Python code."""

    def __missing__(self, family: str) -> count[int]:
        return self.setdefault(family, count())


class CallNames:
    """The families of names of one job. All methods are thread-safe."""

    def __init__(self) -> None:
        self._names = _Counters()
        self._numbers = _Counters()
        self._reserved: set[str] = set()
        self._on_release: dict[str, list[Callable[[], object]]] = {}

    def next_number(self, family: str) -> int:
        """Returns the next number of a family, from 1, modulo 2**32."""
        return next(self._numbers[family]) % 2**32 + 1

    def next_name(self, family: str) -> str:
        """Returns the next name of a bounded cycle of names.

        The name does not depend on the tensor: the n-th unnamed tensors of all ranks belong
        together, and the program must use them in the same order on all ranks. Waits if the name is
        reserved.
        """
        name = f"{family}.{next(self._names[family]) % AUTOMATIC_NAMES}"
        if name in self._reserved:
            released = threading.Event()
            self.on_release(name, released.set)
            released.wait()
        return name

    def reserve(self, name: str) -> None:
        """Makes `next_name` wait before it returns the name again, until `release`."""
        self._reserved.add(name)

    def release(self, name: str) -> None:
        """Ends the reservation of a name."""
        self._reserved.discard(name)
        if self._on_release:
            for callback in self._on_release.pop(name, ()):
                callback()

    def reserved(self, family: str) -> list[str]:
        """Returns the names of a family that are reserved."""
        return [name for name in list(self._reserved) if name.startswith(f"{family}.")]

    def on_release(self, name: str, callback: Callable[[], object]) -> None:
        """Calls `callback` when the name is released, at once if it is not reserved."""
        self._on_release.setdefault(name, []).append(callback)
        if name not in self._reserved:
            self.release(name)
