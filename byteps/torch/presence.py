"""Finds out which gradients exist on any rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from byteps.errors import InvalidArgumentError
from byteps.ops import ReduceOp
from byteps.torch.start import start_push_pull, synchronize

__all__ = ["Presence", "PresenceQuery", "name_of_query"]


@dataclass(frozen=True, slots=True)
class Presence:
    """Whether any rank has a parameter's gradient, and in which layout."""

    dense: bool
    sparse: bool

    def __bool__(self) -> bool:
        return self.dense or self.sparse


class PresenceQuery:
    """A query about some gradients. All ranks ask about the same names at the same time."""

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]], prefix: str, step: int) -> None:
        """Starts the query, in this step of training, with the parameters' present gradients."""
        # The order of parameters may differ between ranks.
        in_order = sorted(named, key=lambda item: item[0])
        self._names = [name for name, _ in in_order]
        flags = torch.zeros(len(in_order), 2, dtype=torch.uint8)
        for row, (_, parameter) in enumerate(in_order):
            grad = parameter.grad
            if grad is not None:
                flags[row, int(grad.is_sparse)] = 1
        urgent = 1  # gradients wait for the answer
        self._handle = start_push_pull(flags, ReduceOp.Max, name_of_query(prefix), urgent, in_place=True, step=step)

    def result(self) -> dict[str, Presence]:
        """Waits, and returns the answer by name. To be called once.

        Raises:
            InvalidArgumentError: on all ranks: a gradient is sparse on some and dense on others.
        """
        rows = synchronize(self._handle).tolist()
        found = {name: Presence(*map(bool, row)) for name, row in zip(self._names, rows, strict=True)}
        for name, presence in found.items():
            if presence.dense and presence.sparse:
                raise InvalidArgumentError(
                    f"'{name}' has a sparse gradient on some ranks and a dense one on others: use the same layout "
                    "everywhere, for example with sparse_as_dense=True"
                )
        return found


def name_of_query(prefix: str) -> str:
    """Returns the name of the query's push_pull."""
    return f"{prefix}presence"
