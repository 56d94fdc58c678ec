"""Gradients of all ranks and of this rank's devices, by the numbers that optimizers give to parameters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import mxnet as mx

from byteps.mxnet.compression import Compression, Compressor
from byteps.mxnet.ops import byteps_push_pull
from byteps.mxnet.tensor import copy_to_all, sum_of_devices
from byteps.ops import ReduceOp

__all__ = ["Exchange", "any_rank", "priority_of"]

NDArray: TypeAlias = mx.nd.NDArray

_exchanges_so_far = itertools.count()


class Exchange:
    """What one optimizer, trainer or kvstore exchanges. All ranks must make the same ones, in the same order."""

    def __init__(self, op: ReduceOp, compression: type[Compressor] = Compression.none) -> None:
        number = next(_exchanges_so_far)  # two models have parameters of the same numbers
        self.prefix = f"mxnet.{number}." if number else "mxnet."
        self._op = op
        self.compression = compression

    def reduce(self, key: int | str, gradients: Sequence[NDArray], priority: int) -> None:
        """Replaces the gradients, one for each of this rank's devices, by what all devices of all ranks have."""
        gradient = sum_of_devices(gradients)
        name = f"{self.prefix}gradient.{key}"
        byteps_push_pull(gradient, 0, priority, name, op=self._op, compression=self.compression)
        copy_to_all(gradient, gradients)


def any_rank(flags: Sequence[bool], name: str) -> list[bool]:
    """Which of the flags are set on some rank. Blocks until all ranks have called it, with as many flags."""
    array = mx.nd.array(flags, dtype="uint8", ctx=mx.cpu())
    byteps_push_pull(array, name=f"{name}.{len(flags)}", op=ReduceOp.Max)
    return [bool(flag) for flag in array.asnumpy()]


def priority_of(key: int | str) -> int:
    """Of a parameter by its number: what the next forward pass needs first goes first."""
    return -key if isinstance(key, int) else 0
