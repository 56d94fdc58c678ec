"""Decorators of functions that torch.compile must not trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

__all__ = ["eager", "frame_callback", "untraced"]

F = TypeVar("F", bound=Callable[..., Any])


# Returns None unless torch.compile watches the frames that this thread enters.
frame_callback: Callable[[], object] = torch._C._dynamo.eval_frame.get_eval_frame_callback


def untraced(function: F) -> F:
    """Like `eager`, without its cost. Functions that `function` calls must be decorated, too."""
    return cast(F, torch._dynamo.decorators.skip(function))


def eager(function: F) -> F:
    """Has compiled code break its graph: `function` passes raw memory to another thread."""
    disabled = torch.compiler.disable(function)

    @untraced
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # The disabled function costs some microseconds even if nothing is compiled.
        return function(*args, **kwargs) if frame_callback() is None else disabled(*args, **kwargs)

    return cast(F, call)
