"""Extends the updates of MXNet's optimizers without replacing the objects."""

from __future__ import annotations

import functools
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import mxnet as mx

from byteps.agreement import look_for_differences
from byteps.dynamic_subclass import DynamicSubclass, become_subclass, restore_class
from byteps.mxnet.exchange import GradientExchange
from byteps.numpy import sum_of_bits
from byteps.runtime import current_job

__all__ = ["Extended", "Update", "extend", "hyperparameters_of", "install", "retract"]

NDArray: TypeAlias = mx.nd.NDArray


class Update(NamedTuple):
    """The arguments of the update of one parameter."""

    key: int | str
    weight: NDArray
    gradient: NDArray


class Extended(DynamicSubclass, mx.optimizer.Optimizer):
    """The base of classes that are put before the class of an optimizer."""

    extension: Any  # data of the subclass; not part of copies and pickles
    exchange: GradientExchange  # not part of copies and pickles
    _checked_in: Any = None  # weak reference to the job in which the ranks have compared parameters
    _is_updating = False  # an update may call another one of this object

    @abstractmethod
    def around(self, updates: Sequence[Update], update: Callable[[], None]) -> None:
        """Called for each update. `update` runs the update of the plain class."""

    def settle(self) -> None:
        """Gives all ranks the same weights, if training is asynchronous.

        Blocks until all have called it.
        """

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Overrides the plain class's method. All arguments may be lists."""
        self._outermost(index, weight, grad, lambda: super(Extended, self).update(index, weight, grad, state))

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Overrides the plain class's method. All arguments may be lists."""
        plain = super().update_multi_precision
        self._outermost(index, weight, grad, lambda: plain(index, weight, grad, state))

    def _outermost(self, index: Any, weight: Any, grad: Any, update: Callable[[], None]) -> None:
        if self._is_updating:
            return update()
        if isinstance(index, (list, tuple)):
            updates = [Update(*each) for each in zip(index, weight, grad, strict=True)]
        else:
            updates = [Update(index, weight, grad)]
        job = current_job()
        if self._checked_in is None or self._checked_in() is not job:
            if not self.exchange.is_of_this_job:
                self.exchange.check_agreement("DistributedOptimizer")
            of_a_trainer = self.param_dict  # gluon's; else empty
            names = [of_a_trainer[number].name for number in sorted(of_a_trainer)]
            self.exchange.check_names("DistributedOptimizer", names)
            if not job.config.asynchronous:  # asynchronous ranks get rank 0's weights
                self._look_for_differences(of_a_trainer)
            self._checked_in = weakref.ref(job)
        self._is_updating = True
        try:
            self.around(updates, update)
        finally:
            self._is_updating = False

    def _look_for_differences(self, parameters: dict[int, Any]) -> None:
        look_for_differences(
            "DistributedOptimizer",
            lambda: [sum_of_bits(parameters[number].list_data()[0].asnumpy()) for number in sorted(parameters)],
            lambda: hyperparameters_of(self),
            f"{self.exchange.prefix}differences",
        )

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {key: value for key, value in state.items() if key not in ("exchange", "extension", *_FLAGS)}


# These may differ between ranks.
_OF_A_RANK = ("aggregate_num", "begin_num_update", "num_update", "rescale_grad")


def hyperparameters_of(optimizer: mx.optimizer.Optimizer) -> list[str]:
    """Returns a line for each scalar argument of an optimizer."""
    values = {"learning_rate": optimizer.learning_rate, **vars(optimizer)}
    return [
        f"{key}={values[key]!r}"
        for key in sorted(values)
        if key not in _OF_A_RANK and not key.startswith("_") and isinstance(values[key], bool | int | float | str)
    ]


_FLAGS = ("_checked_in", "_is_updating")


def extend(
    optimizer: mx.optimizer.Optimizer, addition: type[Extended], exchange: GradientExchange, extension: Any = None
) -> None:
    """Puts `addition` before the class of `optimizer`."""
    become_subclass(optimizer, addition)
    optimizer.exchange, optimizer.extension = exchange, extension


def retract(optimizer: Extended) -> None:
    """Reverts `extend`."""
    restore_class(optimizer)
    for name in ("exchange", "extension", *_FLAGS):
        optimizer.__dict__.pop(name, None)


def install() -> None:
    """Makes an optimizer from a file (`load_states`) distributed if it replaces a distributed one.

    Files have plain optimizers, so that they can be read without byteps.
    """
    set_states = mx.optimizer.Updater.set_states

    @functools.wraps(set_states)
    def set_states_and_extend(self: mx.optimizer.Updater, states: bytes) -> None:
        before = self.optimizer
        set_states(self, states)
        if isinstance(before, Extended) and not isinstance(self.optimizer, Extended):
            extend(self.optimizer, cast("type[Extended]", before.mixin), before.exchange, before.extension)
            self.optimizer._checked_in = before._checked_in

    mx.optimizer.Updater.set_states = set_states_and_extend
