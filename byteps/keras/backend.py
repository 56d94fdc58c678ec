"""How gradients of Keras's backend travel: what the adapters of the backends have in common."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import keras

from byteps.errors import UnsupportedError
from byteps.keras.compression import Compression
from byteps.ops import ReduceOp

__all__ = ["Backend", "OptimizerOptions", "current_backend"]


@dataclass(frozen=True, slots=True)
class OptimizerOptions:
    """What the gradients of one optimizer have in common. DistributedOptimizer documents it."""

    compression: Any = Compression.none
    op: ReduceOp = ReduceOp.Average
    sparse_as_dense: bool = False


class Backend(Protocol):
    """A module for one backend of Keras. Gradients and flags are tensors of that backend."""

    def check_usable(self) -> None:
        """Raises UnsupportedError where gradients cannot be exchanged from, with what to do instead."""

    def is_eager(self) -> bool:
        """Whether what is computed now has values; False while a graph is traced."""

    def outside_graphs(self) -> AbstractContextManager[Any]:
        """Within it variables have values, also while a graph is traced."""

    def is_sparse(self, gradient: Any) -> bool:
        """Whether it is rows of a table, and not a dense tensor."""

    def no_gradient(self, variable: Any, sparse: bool) -> Any:
        """A gradient of zeros; of no rows if `sparse`."""

    def exchange(self, gradients: Sequence[Any], names: Sequence[str], options: OptimizerOptions) -> list[Any]:
        """The gradients reduced over all ranks; priority falls with the position. None of them is None."""

    def all_true(self, flag: Any, name: str) -> Any:
        """Whether `flag`, a boolean of no dimensions, is true on all ranks."""


def current_backend() -> Backend:
    """The module for the backend that Keras runs on.

    Raises:
        UnsupportedError: there is none.
    """
    name = keras.backend.backend()
    if name == "tensorflow":
        from byteps.keras import on_tensorflow

        return on_tensorflow
    if name == "torch":
        from byteps.keras import on_torch

        return on_torch
    if name == "jax":
        raise UnsupportedError(
            "DistributedOptimizer: Keras's jax backend compiles the whole training step into one function without side "
            "effects, and nothing in it may wait for other ranks. Set KERAS_BACKEND to tensorflow or torch; or, in a "
            "training loop of your own, average each gradient by byteps.numpy.push_pull(numpy.asarray(gradient), "
            "name=...) between jax.grad and optimizer.stateless_apply, outside jax.jit"
        )
    raise UnsupportedError(f"DistributedOptimizer: Keras's backend is '{name}': expected tensorflow or torch")
