"""Transitions between the states of an Enum."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import TypeVar

__all__ = ["transition"]

State = TypeVar("State", bound=Enum)


def transition(current: State, allowed: Collection[State], new: State) -> State:
    """Returns `new`, or raises AssertionError if `current` is not one of `allowed`."""
    if current not in allowed:
        names = ", ".join(state.name for state in allowed)
        raise AssertionError(f"{type(current).__name__} is {current.name}, expected {names} before {new.name}")
    return new
