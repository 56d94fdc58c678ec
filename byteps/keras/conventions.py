"""Arguments of callbacks, which BytePS and Horovod take in different orders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from byteps.errors import InvalidArgumentError

__all__ = ["SCHEDULE", "WARMUP", "arguments_of"]


class Conventions(NamedTuple):
    """The signatures of one callback in BytePS and in Horovod."""

    byteps: Callable[..., None]
    horovod: Callable[..., None]
    advice: str  # the arguments to pass by name if a call is ambiguous


def _byteps_schedule(
    multiplier: Any,
    start_epoch: Any = 0,
    end_epoch: Any = None,
    staircase: Any = True,
    momentum_correction: Any = True,
    steps_per_epoch: Any = None,
    initial_lr: Any = None,
) -> None: ...


def _horovod_schedule(
    initial_lr: Any,
    multiplier: Any,
    start_epoch: Any = 0,
    end_epoch: Any = None,
    staircase: Any = True,
    momentum_correction: Any = True,
    steps_per_epoch: Any = None,
) -> None: ...


def _byteps_warmup(
    warmup_epochs: Any = 5,
    momentum_correction: Any = True,
    steps_per_epoch: Any = None,
    verbose: Any = 0,
    initial_lr: Any = None,
) -> None: ...


def _horovod_warmup(
    initial_lr: Any,
    warmup_epochs: Any = 5,
    momentum_correction: Any = True,
    steps_per_epoch: Any = None,
    verbose: Any = 0,
) -> None: ...


SCHEDULE = Conventions(_byteps_schedule, _horovod_schedule, "initial_lr=, multiplier= and start_epoch=")
WARMUP = Conventions(_byteps_warmup, _horovod_warmup, "warmup_epochs= and initial_lr=")


def arguments_of(
    caller: str, conventions: Conventions, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of a call by name, by the convention that the call follows.

    Raises:
        InvalidArgumentError: the call fits no convention, or it fits both with different meanings.
    """
    readings: list[dict[str, Any]] = []
    errors = []
    for convention in (conventions.byteps, conventions.horovod):
        signature = inspect.signature(convention)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            errors.append(str(error))
            continue
        bound.apply_defaults()
        reading = {"initial_lr": None, **bound.arguments}
        if not args or _is_plausible(reading, positional=list(signature.parameters)[: len(args)]):
            readings.append(reading)
        else:
            errors.append(f"{args!r:.80} are no {', '.join(signature.parameters)}")
    if len(readings) == 2 and args:
        raise InvalidArgumentError(
            f"{caller}: {', '.join(map(repr, args))} without names could be BytePS's arguments or Horovod's, which "
            f"begin with the learning rate: give {conventions.advice} by name"
        )
    if not readings:
        raise InvalidArgumentError(f"{caller}: {'; '.join(dict.fromkeys(errors))}")
    return readings[0]


def _is_plausible(arguments: Mapping[str, Any], positional: Sequence[str]) -> bool:
    """Whether each positional argument is of the kind that its name requires."""
    return all(_KINDS[name](arguments[name]) for name in positional if name in _KINDS)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_epoch(value: Any) -> bool:
    """Whether `value` may be an epoch: 5.0 may be one, 1.0 is taken for a factor."""
    return _is_number(value) and (isinstance(value, Integral) or (float(value) > 1 and float(value).is_integer()))


def _is_rate(value: Any) -> bool:
    """Whether `value` may be a learning rate: an int above 1 is taken for a number of epochs."""
    return value is None or (_is_number(value) and not (isinstance(value, Integral) and int(value) > 1))


_KINDS: dict[str, Callable[[Any], bool]] = {
    "initial_lr": _is_rate,
    "multiplier": lambda value: callable(value) or (_is_number(value) and value != 0),
    "start_epoch": _is_epoch,
    "end_epoch": lambda value: value is None or _is_epoch(value),
    "staircase": _is_flag,
    "warmup_epochs": lambda value: _is_number(value) and value >= 1,
    "momentum_correction": _is_flag,
    "steps_per_epoch": lambda value: value is None or _is_epoch(value),
    "verbose": lambda value: isinstance(value, Integral),
}
