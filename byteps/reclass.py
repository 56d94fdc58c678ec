"""Objects of frameworks that get more to do, and stay the objects that they are."""

from __future__ import annotations

from typing import Any

__all__ = ["Reclassed", "reclass", "restore"]


class Reclassed:
    """Base of what is added to an object's class. Copies and pickles of the object are of its plain class."""

    plain: type[Any]
    addition: type[Reclassed]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = self.__getstate__()  # type: ignore[attr-defined]  # an optimizer's own; Python has one since 3.11
        return _new, (self.plain,), state


def reclass(instance: Any, addition: type[Reclassed]) -> None:
    """Puts `addition` before the class of `instance`."""
    plain = type(instance)
    members = {"__module__": plain.__module__, "__doc__": plain.__doc__, "plain": plain, "addition": addition}
    instance.__class__ = type(plain.__name__, (addition, plain), members)


def restore(instance: Any) -> None:
    """Takes back what `reclass` did."""
    instance.__class__ = instance.plain


def _new(plain: Any) -> Any:
    return plain.__new__(plain)
