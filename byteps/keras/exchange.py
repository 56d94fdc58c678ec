"""The gradients of one optimizer on their way to the other ranks and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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


class GradientExchange:
    """Knows an optimizer's variables by names that all ranks share, and what must be done about each gradient.

    At the first gradients of a job, and when the variables become others, the ranks compare names, shapes, dtypes and
    arguments.
    """

    def __init__(self, backend: Backend, options: OptimizerOptions, description: str) -> None:
        """Args: description of the optimizer's arguments, which must be alike on all ranks."""
        self._number = JobNumber("keras.DistributedOptimizer")
        self._backend = backend
        self._options = options
        self._description = description
        self._variables: list[Any] = []
        self._names: dict[int, str] = {}
        self._stand_ins: dict[int, bool] = {}  # variables that always take part, and whether they are sparse
        self._is_first = True
        self.hyperparameters: Callable[[], Sequence[str]] = list  # of the optimizer, a line for each
        self.broadcast_is_due = False  # after the first step, which makes the model's variables
        self.is_done = False  # the gradients that the optimizer has now are those of all ranks
        self.count = 0  # of calls of `average`
        self.due: list[Any] = []  # variables whose gradients accumulate, in the order in which Keras has them

    @property
    def _prefix(self) -> str:
        """Of the names that ranks meet under, in the current job."""
        return f"Gradient.{self._number.get()}."

    def is_eager(self) -> bool:
        """Whether gradients have values now; False while a graph is traced."""
        return self._backend.is_eager()

    def know(self, variables: Sequence[Any]) -> None:
        """Tells it of all the optimizer's variables, which gradients may be of. Blocks when they are new."""
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
        self._variables = list(variables)  # keeps them alive, so that their ids stay theirs
        self._stand_ins = {}
        self._is_first = True
        if not self.broadcast_is_due:
            with self._backend.outside_graphs():
                look_for_differences(
                    "DistributedOptimizer", self._weights, self.hyperparameters, f"{self._prefix}differences"
                )

    def complete(self, pairs: Pairs) -> list[Any]:
        """The gradients, with zeros where this rank has none and another has one.

        Eagerly the ranks ask each other each time. A graph is traced once, and not equally often on all ranks, so for
        graphs the first gradients decide.

        Args:
            pairs: of gradients or None, and variables.

        Raises:
            InvalidArgumentError: on all ranks: a gradient is sparse on some and dense on others.
        """
        self._backend.check_usable()
        if self._is_first or self._backend.is_eager():
            self._stand_ins = self._ask(pairs)
            self._is_first = False
        return [
            self._backend.no_gradient(variable, self._stand_ins[id(variable)])
            if gradient is None and id(variable) in self._stand_ins
            else gradient
            for gradient, variable in pairs
        ]

    def average(self, pairs: Pairs, op: ReduceOp | None = None) -> list[Any]:
        """The gradients reduced over all ranks; None stays None.

        Args:
            pairs: of gradients or None, and variables.
            op: instead of the optimizer's, and then without compression.
        """
        self.count += 1
        present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        options = self._options if op is None else OptimizerOptions(op=op)
        if self._options.sparse_as_dense:
            options = replace(options, sparse_as_dense=True)
        names = [self._prefix + self._names[id(variable)] for _, variable in present]
        reduced = iter(self._backend.exchange([gradient for gradient, _ in present], names, options))
        return [None if gradient is None else next(reduced) for gradient, _ in pairs]

    def agree(self, finite: Any) -> Any:
        """Whether `finite`, a boolean tensor, is true on all ranks."""
        return self._backend.all_true(finite, f"{self._prefix}finite")

    @contextmanager
    def done(self) -> Iterator[None]:
        """Within it, the optimizer's gradients are those of all ranks already."""
        self.is_done = True
        try:
            yield
        finally:
            self.is_done = False

    def _weights(self) -> list[int]:
        return [sum_of_bits(np.asarray(keras.ops.convert_to_numpy(variable))) for variable in self._variables]

    def _ask(self, pairs: Pairs) -> dict[int, bool]:
        """The variables that have a gradient on some rank, if the ranks differ in that; True for sparse ones."""
        indices = {id(variable): index for index, variable in enumerate(self._variables)}
        mine = np.zeros((len(indices), 2), np.uint8)
        for gradient, variable in pairs:
            if gradient is not None:
                is_sparse = self._backend.is_sparse(gradient) and not self._options.sparse_as_dense
                mine[indices[id(variable)], int(is_sparse)] = 1
        some, lacking = push_pull(np.stack((mine, 1 - mine)), name=f"{self._prefix}presence", op=ReduceOp.Max)
        if not (some & lacking).any():  # what is somewhere is lacking nowhere
            return {}
        found = {}
        for variable, (dense, sparse) in zip(self._variables, some.tolist(), strict=True):
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
