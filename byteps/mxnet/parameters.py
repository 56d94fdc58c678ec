"""Parameters of gluon that get their values later, when the first batch tells their shapes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from mxnet.gluon.parameter import Parameter

__all__ = ["call_after_init", "install"]

_actions: weakref.WeakKeyDictionary[Parameter, list[Callable[[], None]]] = weakref.WeakKeyDictionary()


def call_after_init(parameter: Parameter, action: Callable[[], None]) -> None:
    """Has `action` called once, when the parameter gets values. It must not refer to the parameter for ever."""
    _actions.setdefault(parameter, []).append(action)


def install() -> None:
    """Gluon calls this method of a Parameter when shapes become known, and when values are loaded from a file."""
    init = Parameter._init_impl

    @functools.wraps(init)
    def init_and_act(self: Parameter, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        for action in _actions.pop(self, ()):
            action()

    Parameter._init_impl = init_and_act
