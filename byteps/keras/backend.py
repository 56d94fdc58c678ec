"""The interface to the adapter of Keras's backend."""

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
    """Options of one optimizer's gradients; see DistributedOptimizer."""

    compression: Any = Compression.none
    op: ReduceOp = ReduceOp.Average
    sparse_as_dense: bool = False


class Backend(Protocol):
    """A module for one backend of Keras. All gradients and flags are tensors of that backend."""

    def check_usable(self) -> None:
        """Raises UnsupportedError, with advice, where gradients cannot be exchanged."""

    def is_eager(self) -> bool:
        """Whether tensors have values now; False while a graph is traced."""

    def outside_graphs(self) -> AbstractContextManager[Any]:
        """Returns a context in which variables have values, also while a graph is traced."""

    def is_sparse(self, gradient: Any) -> bool:
        """Whether the gradient consists of rows (IndexedSlices), not of a dense tensor."""

    def no_gradient(self, variable: Any, sparse: bool) -> Any:
        """Returns a gradient of zeros; without rows if `sparse`."""

    def exchange(self, gradients: Sequence[Any], names: Sequence[str], options: OptimizerOptions) -> list[Any]:
        """Returns the gradients reduced over all ranks; the first ones have the highest priority.

        No gradient may be None.
        """

    def all_true(self, flag: Any, name: str) -> Any:
        """Whether `flag`, a boolean scalar, is true on all ranks."""


def current_backend() -> Backend:
    """Returns the module for Keras's backend.

    Raises:
        UnsupportedError: byteps does not support this backend.
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
