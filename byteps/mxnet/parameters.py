"""Parameters of gluon that get their values at the first batch, when their shapes are known."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from mxnet.gluon.parameter import Parameter

__all__ = ["call_after_init", "install"]

_actions: weakref.WeakKeyDictionary[Parameter, list[Callable[[], None]]] = weakref.WeakKeyDictionary()


def call_after_init(parameter: Parameter, action: Callable[[], None]) -> None:
    """Has `action` called once, when the parameter gets values.

    `action` must hold weak references to the parameter only.
    """
    _actions.setdefault(parameter, []).append(action)


def install() -> None:
    """Patches the method of Parameter that gives it values, at the first batch or from a file."""
    init = Parameter._init_impl

    @functools.wraps(init)
    def init_and_act(self: Parameter, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        for action in _actions.pop(self, ()):
            action()

    Parameter._init_impl = init_and_act
