"""The exchange of one optimizer's gradients between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum, auto
from typing import Any

import keras
import numpy as np

from byteps.agreement import check_agreement, look_for_differences
from byteps.errors import InvalidArgumentError
from byteps.keras.backend import Backend, OptimizerOptions
from byteps.keras.naming import stable_names
from byteps.numpy import push_pull, sum_of_bits
from byteps.ops import ReduceOp
from byteps.per_job import JobNumber
from byteps.runtime import current_job

__all__ = ["GradientExchange"]

Pairs = Sequence[tuple[Any, Any]]


class _State(Enum):
    """The gradients that the optimizer is applying."""

    LOCAL = auto()  # gradients of this rank, to be reduced
    ACCUMULATING = auto()  # gradients of this rank that Keras adds up; due sums have to be reduced
    ACCUMULATED = auto()  # sums that were due, reduced over all ranks
    REDUCED = auto()  # gradients that were reduced before


class GradientExchange:
    """Names an optimizer's variables alike on all ranks, and reduces their gradients.

    At the first gradients of a job, and when the optimizer has other variables, the ranks compare
    names, shapes, dtypes and arguments.
    """

    def __init__(self, backend: Backend, options: OptimizerOptions, description: str) -> None:
        """Args: description of the optimizer's arguments, which must be the same on all ranks."""
        self._number = JobNumber("keras.DistributedOptimizer")
        self._backend = backend
        self._options = options
        self._description = description
        self._variables: list[Any] = []
        self._names: dict[int, str] = {}  # by id of the variable
        # By id, variables that need zeros where this rank has no gradient, and whether their
        # gradients are sparse. None: the ranks have not compared which gradients they have.
        self._zero_filled: dict[int, bool] | None = None
        self._state = _State.LOCAL
        self._accumulating: list[Any] = []  # variables whose gradients Keras adds up, in its order
        self.hyperparameters: Callable[[], Sequence[str]] = list  # the optimizer's, a line for each
        self.broadcast_is_pending = False  # variables are broadcast after the first step

    @property
    def _prefix(self) -> str:
        """The beginning of all names of this exchange in the current job."""
        return f"Gradient.{self._number.get()}."

    def is_eager(self) -> bool:
        """Whether gradients have values now; False while a graph is traced."""
        return self._backend.is_eager()

    def set_variables(self, variables: Sequence[Any]) -> None:
        """Sets all of the optimizer's variables.

        Blocks when they are new: the ranks compare them.
        """
        is_known = len(variables) == len(self._variables) and all(map(_is, variables, self._variables))
        if is_known and self._number.is_of(current_job()):
            return
        names = stable_names(variables)
        lines = [self._description] + [
            f"'{name}' of {variable.dtype} {list(variable.shape)}"
            for name, variable in zip(names, variables, strict=True)
        ]
        check_agreement("DistributedOptimizer", lines, f"{self._prefix}agreement")
        self._names = {id(variable): name for name, variable in zip(names, variables, strict=True)}
        self._variables = list(variables)  # keeps them alive, so that their ids stay valid
        self._zero_filled = None
        if not self.broadcast_is_pending:
            with self._backend.outside_graphs():
                look_for_differences(
                    "DistributedOptimizer", self._weights, self.hyperparameters, f"{self._prefix}differences"
                )

    def complete(self, pairs: Pairs) -> list[Any]:
        """Returns the gradients, with zeros where only other ranks have one.

        Eagerly the ranks compare which gradients they have at each call. In graphs they compare
        only at the first one, since ranks may trace a graph a different number of times.

        Args:
            pairs: of gradients or None, and variables.

        Raises:
            InvalidArgumentError: on all ranks: a gradient is sparse on some and dense on others.
        """
        self._backend.check_usable()
        if self._zero_filled is None or self._backend.is_eager():
            self._zero_filled = self._compare_presence(pairs)
        return [
            self._backend.no_gradient(variable, self._zero_filled[id(variable)])
            if gradient is None and id(variable) in self._zero_filled
            else gradient
            for gradient, variable in pairs
        ]

    def average(self, pairs: Pairs, op: ReduceOp | None = None) -> list[Any]:
        """Returns the gradients reduced over all ranks; None stays None.

        Args:
            pairs: of gradients or None, and variables.
            op: replaces the optimizer's operation, and turns compression off.
        """
        present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        options = self._options if op is None else OptimizerOptions(op=op)
        if self._options.sparse_as_dense:
            options = replace(options, sparse_as_dense=True)
        names = [self._prefix + self._names[id(variable)] for _, variable in present]
        reduced = iter(self._backend.exchange([gradient for gradient, _ in present], names, options))
        return [None if gradient is None else next(reduced) for gradient, _ in pairs]

    def all_true(self, flag: Any) -> Any:
        """Whether `flag`, a boolean tensor, is true on all ranks."""
        return self._backend.all_true(flag, f"{self._prefix}finite")

    @property
    def is_reduced(self) -> bool:
        """Whether the optimizer is applying gradients that are reduced already."""
        return self._state is _State.REDUCED

    @contextmanager
    def reduced(self) -> Iterator[None]:
        """The optimizer applies reduced gradients in this context."""
        self._state = _State.REDUCED
        try:
            yield
        finally:
            self._state = _State.LOCAL

    @contextmanager
    def accumulating(self, variables: Sequence[Any]) -> Iterator[None]:
        """Keras adds up the gradients of `variables` in this context, and applies due sums."""
        self._state = _State.ACCUMULATING
        self._accumulating = list(variables)
        try:
            yield
        finally:
            self._state = _State.LOCAL

    def average_accumulated(self, sums: Sequence[Any]) -> list[Any]:
        """Returns the accumulated gradients reduced over all ranks. Within `accumulating`."""
        self._state = _State.ACCUMULATED
        return self.average(list(zip(sums, self._accumulating, strict=True)))

    @property
    def has_averaged_sums(self) -> bool:
        """Whether `average_accumulated` was called. Within `accumulating`."""
        return self._state is _State.ACCUMULATED

    def _weights(self) -> list[int]:
        return [sum_of_bits(np.asarray(keras.ops.convert_to_numpy(variable))) for variable in self._variables]

    def _compare_presence(self, pairs: Pairs) -> dict[int, bool]:
        """Returns the variables that have a gradient on some ranks only; True for sparse ones."""
        indices = {id(variable): index for index, variable in enumerate(self._variables)}
        mine = np.zeros((len(indices), 2), np.uint8)  # by variable: dense gradient, sparse gradient
        for gradient, variable in pairs:
            if gradient is not None:
                is_sparse = self._backend.is_sparse(gradient) and not self._options.sparse_as_dense
                mine[indices[id(variable)], int(is_sparse)] = 1
        present, lacking = push_pull(np.stack((mine, 1 - mine)), name=f"{self._prefix}presence", op=ReduceOp.Max)
        if not (present & lacking).any():  # no rank lacks a gradient that another rank has
            return {}
        found = {}
        for variable, (dense, sparse) in zip(self._variables, present.tolist(), strict=True):
            if dense and sparse:
                raise InvalidArgumentError(
                    f"DistributedOptimizer: '{self._names[id(variable)]}' has IndexedSlices as its gradient on some "
                    "ranks and a dense one on others: pass sparse_as_dense=True"
                )
            if dense or sparse:
                found[id(variable)] = bool(sparse)
        return found


def _is(one: object, other: object) -> bool:
    return one is other
