"""Reads the reports of processes about their end, which `byteps.ending` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Report:
    """The cause of the end of a process, from itself."""

    at: float  # time of the cause, by time.time()
    cause: str  # such as "KeyError: 'label'"
    because_of: str  # failure of another process that led to the cause; "": none


def read_report(path: Path) -> Report | None:
    """Returns the report, or None if there is none or it is invalid."""
    try:
        fields = json.loads(path.read_text())
        return Report(float(fields["at"]), str(fields["cause"]), str(fields["because_of"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
