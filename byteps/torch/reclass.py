"""Optimizers and modules that get more to do (byteps/reclass.py), and steps within a step."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from byteps.reclass import Reclassed, reclass

__all__ = ["Reclassed", "Within", "closure_of", "is_step_within", "reclass", "within"]

_STEP_WITH_HOOKS = Optimizer.profile_hook_step(lambda: None).__code__  # of every class that there is an optimizer of


class Within:
    """What `within` returns."""

    __slots__ = ()


def within(optimizer: Any, param_groups: list[dict[str, Any]]) -> Any:
    """A reclassed optimizer as its own step is to see it: with `param_groups`, and else the same attributes.

    A pre-hook of step hands it on in place of the optimizer. Then hooks can tell the steps within, which are those of
    base classes; and if the step raises nothing has to be put back.
    """
    kind = type(optimizer)
    if "_within" not in vars(kind):
        kind._within = type(
            kind.__name__, (Within, kind), {"__module__": kind.__module__, "__slots__": ["param_groups"]}
        )
    view = object.__new__(kind._within)
    view.__dict__ = optimizer.__dict__
    view.param_groups = param_groups
    return view


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The closure among the arguments that a hook of step gets."""
    return args[1] if len(args) > 1 else kwargs.get("closure")


def is_step_within(optimizer: Any) -> bool:
    """From a hook of step: whether the call is one of those that a step makes of its base class's, with hooks too."""
    calls = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None and calls < 2:
        calls += frame.f_code is _STEP_WITH_HOOKS and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return calls == 2
