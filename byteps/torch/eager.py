"""Functions that torch.compile must call and not trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

__all__ = ["eager"]

F = TypeVar("F", bound=Callable[..., Any])


def eager(function: F) -> F:
    """The function, which breaks the graph where compiled code calls it: it hands raw memory to another thread."""
    return cast(F, torch.compiler.disable(function))
