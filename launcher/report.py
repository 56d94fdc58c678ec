"""What a process has written about its own end (`byteps.ending`), in the file that bpslaunch has named to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Report:
    """Why a process has ended, in its own words."""

    at: float  # by time.time()
    cause: str  # "KeyError: 'label'"
    because_of: str  # the failure of another process that it has failed by; "": none that it knows


def read_report(path: Path) -> Report | None:
    """None: it has written none, or none that can be read."""
    try:
        said = json.loads(path.read_text())
        return Report(float(said["at"]), str(said["cause"]), str(said["because_of"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
