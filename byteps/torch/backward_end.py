"""The backward pass that runs a hook, and callbacks at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType

import torch
from torch.autograd.function import BackwardCFunction

__all__ = ["at_end_of_backward", "current_backward", "is_compiled", "is_nested"]

# Returns the number of the pass that the calling hook runs in, or -1. No two passes have the same
# number.
current_backward: Callable[[], int] = torch._C._current_graph_task_id

_CUSTOM_BACKWARDS: set[CodeType] = {
    function.__code__ for name in ("apply", "apply_boxed") if (function := getattr(BackwardCFunction, name, None))
}


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """From a hook: calls `callback` at the end of the backward pass, before backward() returns.

    backward() raises what `callback` raises. It is not called if the pass fails, nor under compiled
    autograd.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def is_compiled() -> bool:
    """Whether compiled autograd runs the backward pass of the calling hook."""
    compiled_autograd = sys.modules.get("torch._dynamo.compiled_autograd")
    return compiled_autograd is not None and compiled_autograd.in_compiled_autograd_region


def is_nested() -> bool:
    """Whether the backward pass of the calling hook is nested in another one, as reentrant
    checkpointing does.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in _CUSTOM_BACKWARDS:
            return True
        frame = frame.f_back
    return False
