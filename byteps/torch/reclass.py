"""Optimizers and modules that get more to do, and stay the objects that they are."""

from __future__ import annotations

from typing import Any

__all__ = ["Reclassed", "Within", "closure_of", "reclass", "within"]


class Reclassed:
    """Base of what is added to an object's class. Copies and pickles of the object are of its plain class."""

    plain: type[Any]
    _within: type[Any] | None = None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = self.__getstate__()  # type: ignore[attr-defined]  # an optimizer's own; Python has one since 3.11
        return _new, (self.plain,), state


class Within:
    """What `within` returns."""

    __slots__ = ()


def reclass(instance: Any, addition: type[Reclassed]) -> None:
    """Puts `addition` before the class of `instance`."""
    plain = type(instance)
    members = {"__module__": plain.__module__, "__doc__": plain.__doc__, "plain": plain}
    instance.__class__ = type(plain.__name__, (addition, plain), members)


def within(optimizer: Any, param_groups: list[dict[str, Any]]) -> Any:
    """A reclassed optimizer as its own step is to see it: with `param_groups`, and else the same attributes.

    A pre-hook of step hands it on in place of the optimizer. Then hooks can tell the steps within, which are those of
    base classes; and if the step raises nothing has to be put back.
    """
    kind = type(optimizer)
    if kind._within is None:
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


def _new(plain: Any) -> Any:
    return plain.__new__(plain)
