"""Gradients of all ranks and of this rank's devices, by the numbers that optimizers give to parameters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import mxnet as mx

from byteps.agreement import check_agreement
from byteps.errors import UnsupportedError
from byteps.mxnet.compression import Compression, Compressor
from byteps.mxnet.ops import byteps_push_pull
from byteps.mxnet.tensor import copy_to_all, sum_of_devices
from byteps.ops import ReduceOp
from byteps.runtime import current_job

__all__ = ["Exchange", "any_rank", "priority_of"]

NDArray: TypeAlias = mx.nd.NDArray

_exchanges_so_far = itertools.count()


class Exchange:
    """What one optimizer, trainer or kvstore exchanges. All ranks must make the same ones, in the same order."""

    def __init__(self, op: ReduceOp, compression: type[Compressor] = Compression.none) -> None:
        number = next(_exchanges_so_far)  # two models have parameters of the same numbers
        self.prefix = f"mxnet.{number}." if number else "mxnet."
        self.op = op
        self.compression = compression

    def check_agreement(self, caller: str, lines: Sequence[str] = ()) -> None:
        """Raises an error on all ranks if they are about to do different things. Blocks until all have called it.

        Args:
            caller: begins the message.
            lines: what must be alike on all ranks beside the way to train.

        Raises:
            InvalidArgumentError: they differ.
            UnsupportedError: compression of asynchronous training.
        """
        config = current_job().config
        way = f"asynchronous training with staleness={config.staleness}" if config.asynchronous else "training in step"
        options = f"{way}, op={self.op.name}, {self.compression.__name__}"
        check_agreement(caller, [options, *lines], f"{self.prefix}agreement")
        if config.asynchronous and self.compression is not Compression.none:
            raise UnsupportedError(
                f"{caller}: asynchronous training sends changes of weights as they are: no compression"
            )

    def reduce(self, key: int | str, gradients: Sequence[NDArray], priority: int) -> None:
        """Replaces the gradients, one for each of this rank's devices, by what all devices of all ranks have."""
        gradient = sum_of_devices(gradients)
        name = f"{self.prefix}gradient.{key}"
        byteps_push_pull(gradient, 0, priority, name, op=self.op, compression=self.compression)
        copy_to_all(gradient, gradients)


def any_rank(flags: Sequence[bool], name: str) -> list[bool]:
    """Which of the flags are set on some rank. Blocks until all ranks have called it, with as many flags."""
    array = mx.nd.array(flags, dtype="uint8", ctx=mx.cpu())
    byteps_push_pull(array, name=f"{name}.{len(flags)}", op=ReduceOp.Max)
    return [bool(flag) for flag in array.asnumpy()]


def priority_of(key: int | str) -> int:
    """Of a parameter by its number: what the next forward pass needs first goes first."""
    return -key if isinstance(key, int) else 0
