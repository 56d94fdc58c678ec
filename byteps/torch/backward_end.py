"""The end of a backward pass, as autograd knows it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType

import torch
from torch.autograd.function import BackwardCFunction

__all__ = ["at_end_of_backward", "current_backward", "is_compiled", "is_nested"]

# The pass that the calling hook runs in, or -1. Passes are never numbered alike.
current_backward: Callable[[], int] = torch._C._current_graph_task_id

_CUSTOM_BACKWARDS: set[CodeType] = {
    function.__code__ for name in ("apply", "apply_boxed") if (function := getattr(BackwardCFunction, name, None))
}


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """From a hook: has `callback` called when the backward pass is over, before backward() returns.

    What it raises, backward() raises. It is not called if the pass fails, nor under compiled autograd.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def is_compiled() -> bool:
    """Whether the backward pass of the calling hook is run by compiled autograd."""
    compiled_autograd = sys.modules.get("torch._dynamo.compiled_autograd")
    return compiled_autograd is not None and compiled_autograd.in_compiled_autograd_region


def is_nested() -> bool:
    """Whether the backward pass of the calling hook runs inside another one, as reentrant checkpointing does."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in _CUSTOM_BACKWARDS:
            return True
        frame = frame.f_back
    return False
