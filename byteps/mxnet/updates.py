"""Optimizers of MXNet that do more around their updates, and stay the objects that they are."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import mxnet as mx

from byteps.mxnet.exchange import Exchange
from byteps.reclass import Reclassed, reclass, restore

__all__ = ["Extended", "Update", "extend", "install", "retract"]

NDArray: TypeAlias = mx.nd.NDArray


class Update(NamedTuple):
    """Of one parameter."""

    key: int | str
    weight: NDArray
    gradient: NDArray


class Extended(Reclassed, mx.optimizer.Optimizer):
    """Base of what is added to the class of an optimizer."""

    extension: Any  # what the addition needs; not part of copies and pickles
    exchange: Exchange  # nor is this
    _is_checked = False  # that all ranks have the same parameters in the same order
    _is_within = False  # an update, as one of the two methods may call the other one

    @abstractmethod
    def around(self, updates: Sequence[Update], update: Callable[[], None]) -> None:
        """Called for each update, with that of the plain class as `update`."""

    def settle(self) -> None:
        """If training is asynchronous: blocks until all ranks have called it; then all have the same weights."""

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As in the plain class. `index` and the others may be lists."""
        self._outermost(index, weight, grad, lambda: super(Extended, self).update(index, weight, grad, state))

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As in the plain class. `index` and the others may be lists."""
        plain = super().update_multi_precision
        self._outermost(index, weight, grad, lambda: plain(index, weight, grad, state))

    def _outermost(self, index: Any, weight: Any, grad: Any, update: Callable[[], None]) -> None:
        if self._is_within:
            return update()
        if isinstance(index, (list, tuple)):
            updates = [Update(*each) for each in zip(index, weight, grad, strict=True)]
        else:
            updates = [Update(index, weight, grad)]
        if not self._is_checked:
            of_a_trainer = self.param_dict  # gluon's; else empty
            names = [of_a_trainer[number].name for number in sorted(of_a_trainer)]
            self.exchange.check_names("DistributedOptimizer", names)
            self._is_checked = True
        self._is_within = True
        try:
            self.around(updates, update)
        finally:
            self._is_within = False

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {key: value for key, value in state.items() if key not in ("exchange", "extension", *_FLAGS)}


_FLAGS = ("_is_checked", "_is_within")


def extend(
    optimizer: mx.optimizer.Optimizer, addition: type[Extended], exchange: Exchange, extension: Any = None
) -> None:
    """Puts `addition` before the class of `optimizer`."""
    reclass(optimizer, addition)
    optimizer.exchange, optimizer.extension = exchange, extension


def retract(optimizer: Extended) -> None:
    """Takes back what `extend` did."""
    restore(optimizer)
    for name in ("exchange", "extension", *_FLAGS):
        optimizer.__dict__.pop(name, None)


def install() -> None:
    """From now on an optimizer that comes from a file (`load_states`) does what the one did whose place it takes.

    A file has plain optimizers, so that it can be read without byteps. Each rank would train alone from there on.
    """
    set_states = mx.optimizer.Updater.set_states

    @functools.wraps(set_states)
    def set_states_and_extend(self: mx.optimizer.Updater, states: bytes) -> None:
        before = self.optimizer
        set_states(self, states)
        if isinstance(before, Extended) and not isinstance(self.optimizer, Extended):
            extend(self.optimizer, cast("type[Extended]", before.addition), before.exchange, before.extension)
            self.optimizer._is_checked = before._is_checked

    mx.optimizer.Updater.set_states = set_states_and_extend
