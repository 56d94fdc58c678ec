"""Gives an existing object more methods: its class becomes a subclass that is made at run time.

The object stays the same one, so everything that refers to it (schedulers, trainers) stays valid.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DynamicSubclass", "become_subclass", "restore_class"]


class DynamicSubclass:
    """Base class of mixins for `become_subclass`.

    Copies and pickles of an object are of its plain class.
    """

    plain_class: type[Any]
    mixin: type[DynamicSubclass]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = self.__getstate__()  # type: ignore[attr-defined]  # an optimizer's own; Python has one since 3.11
        return _new, (self.plain_class,), state


def become_subclass(instance: Any, mixin: type[DynamicSubclass]) -> None:
    """Makes the class of `instance` a subclass of `mixin` and of its present class."""
    plain = type(instance)
    members = {"__module__": plain.__module__, "__doc__": plain.__doc__, "plain_class": plain, "mixin": mixin}
    instance.__class__ = type(plain.__name__, (mixin, plain), members)


def restore_class(instance: Any) -> None:
    """Reverts `become_subclass`."""
    instance.__class__ = instance.plain_class


def _new(plain_class: Any) -> Any:
    return plain_class.__new__(plain_class)
