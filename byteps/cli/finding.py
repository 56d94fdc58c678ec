"""The findings of `byteps doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    topic: str
    state: State
    text: str
