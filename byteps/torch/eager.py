"""Functions that torch.compile must call and not trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

__all__ = ["eager", "frame_callback", "untraced"]

F = TypeVar("F", bound=Callable[..., Any])


def eager(function: F) -> F:
    """The function, which breaks the graph where compiled code calls it: it hands raw memory to another thread."""
    return cast(F, torch.compiler.disable(function))


def untraced(function: F) -> F:
    """As `eager`, at no cost for each call, for a function that calls nothing in Python but what is `eager`."""
    return cast(F, torch._dynamo.decorators.skip(function))


# Not None while torch.compile looks at the frames that this thread enters.
frame_callback: Callable[[], object] = torch._C._dynamo.eval_frame.get_eval_frame_callback
