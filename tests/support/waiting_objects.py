"""The Python objects that wait for operations in flight.

The garbage collector looks at all of them again and again, so there should be few.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["waiting_objects"]

T = TypeVar("T")


def waiting_objects(start: Callable[[], Sequence[T]], finish: Callable[[T], object]) -> float:
    """Returns the number of objects for each operation that `start` starts."""
    for operation in start():  # whatever the first uses leave behind
        finish(operation)
    gc.collect()
    before = len(gc.get_objects())
    operations = start()
    gc.collect()
    waiting = len(gc.get_objects()) - before
    for operation in operations:
        finish(operation)
    return waiting / len(operations)
