"""What a program under test says to its test."""

from __future__ import annotations

import sys


def say(*what: object) -> None:
    """Prints a line.

    In one write, so that a line that the core logs to the same file at that time does not end up within it:
    print() makes one write of each argument if PYTHONUNBUFFERED is set.
    """
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()
