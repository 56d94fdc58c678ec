"""Steps of torch's optimizers as their hooks see them, and base-class steps nested in them."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch.optim import Optimizer

__all__ = ["StepView", "closure_of", "is_nested_step", "step_view"]

# The same code in every class of optimizers.
_STEP_WITH_HOOKS = Optimizer.profile_hook_step(lambda: None).__code__


class StepView:
    """Base class of what `step_view` returns."""

    __slots__ = ()


def step_view(optimizer: Any, param_groups: list[dict[str, Any]]) -> Any:
    """Returns a view of an optimizer, a DynamicSubclass, with other `param_groups`.

    A pre-hook of step passes the view on in place of the optimizer. Hooks then recognise nested
    steps, which a step calls in its base class, and nothing has to be restored if the step raises.
    """
    kind = type(optimizer)
    if "_step_view" not in vars(kind):
        kind._step_view = type(
            kind.__name__, (StepView, kind), {"__module__": kind.__module__, "__slots__": ["param_groups"]}
        )
    view = object.__new__(kind._step_view)
    view.__dict__ = optimizer.__dict__
    view.param_groups = param_groups
    return view


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the closure among the arguments that a hook of step gets, or None."""
    return args[1] if len(args) > 1 else kwargs.get("closure")


def is_nested_step(optimizer: Any) -> bool:
    """From a hook of step: whether a step of the same optimizer calls its base class's step."""
    calls = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None and calls < 2:
        calls += frame.f_code is _STEP_WITH_HOOKS and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return calls == 2
