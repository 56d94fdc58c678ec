"""Decorators of functions that torch.compile must not trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

__all__ = ["eager", "frame_callback", "untraced"]

F = TypeVar("F", bound=Callable[..., Any])


def eager(function: F) -> F:
    """Has compiled code break its graph: `function` passes raw memory to another thread."""
    return cast(F, torch.compiler.disable(function))


def untraced(function: F) -> F:
    """Like `eager`, without its cost. Functions that `function` calls must be decorated, too."""
    return cast(F, torch._dynamo.decorators.skip(function))


# Returns None unless torch.compile watches the frames that this thread enters.
frame_callback: Callable[[], object] = torch._C._dynamo.eval_frame.get_eval_frame_callback
