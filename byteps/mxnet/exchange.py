"""Gradients of all ranks and of this rank's devices, by the numbers that optimizers give to parameters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import mxnet as mx

from byteps.agreement import check_agreement
from byteps.compression import compressor_name, sends_as_is
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.mxnet.compression import AnyCompressor, Compression
from byteps.mxnet.native import one_call
from byteps.mxnet.ops import byteps_push_pull, reduce_staged
from byteps.mxnet.tensor import copy_to_all, stage, sum_of_devices
from byteps.ops import ReduceOp
from byteps.per_job import JobNumber, PerJob
from byteps.runtime import current_job

__all__ = ["GradientExchange", "any_rank", "priority_of"]

NDArray: TypeAlias = mx.nd.NDArray


class _Steps:
    """Counts the steps of one exchange in one job: a key that comes again begins the next one.

    So a step that has broken off halfway on one rank is one step there, too, for all keys.
    """

    def __init__(self) -> None:
        self._step = 1
        self._keys: set[int | str] = set()  # that have come in it

    def of_next(self, key: int | str) -> int:
        """The number of the step in which this key comes now."""
        if key in self._keys:
            self._step += 1
            self._keys.clear()
        self._keys.add(key)
        return self._step


class GradientExchange:
    """What one optimizer, trainer or kvstore exchanges. All ranks must make the same ones, in the same order.

    In another job, after `suspend` and `resume`, they are numbered anew, and compare again what they do, as they are
    used again.
    """

    def __init__(self, op: ReduceOp, compression: AnyCompressor = Compression.none) -> None:
        compressor_name(compression)  # an error if it is none
        self._number = JobNumber("mxnet.GradientExchange")
        self.op = op
        self.compression = compression
        self._steps = PerJob(_Steps)

    @property
    def is_of_this_job(self) -> bool:
        """Whether it has been used in the current job."""
        return self._number.is_of(current_job())

    @property
    def prefix(self) -> str:
        """Of the names of its arrays: two models have parameters of the same numbers."""
        return f"mxnet.{self._number.get()}."

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
        options = f"{way}, op={self.op.name}, {compressor_name(self.compression)}"
        check_agreement(caller, [options, *lines], f"{self.prefix}agreement")
        self.check_supported(caller)

    def check_supported(self, caller: str) -> None:
        """Raises UnsupportedError for compression of asynchronous training."""
        if current_job().config.asynchronous and not sends_as_is(self.compression):
            raise UnsupportedError(
                f"{caller}: asynchronous training sends changes of weights as they are: no compression"
            )

    def check_names(self, caller: str, names: Sequence[str], *, exactly: bool = False) -> None:
        """Raises InvalidArgumentError on all ranks unless the parameters come in the same order. Blocks, as above.

        Args:
            caller: begins the message.
            names: of the parameters, in the order of their keys.
            exactly: the names are the keys. Else they may have other numbers on each rank, as gluon gives them to
                blocks; but gluon sorts by name, and so `dense10` before `dense9`, where another rank has `dense0` and
                `dense1`.
        """
        lines = names if exactly else _without_counts(names)
        try:
            check_agreement(caller, lines, f"{self.prefix}names")
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{error}. If only the names differ, give the blocks the same ones on all ranks (prefix=), or use "
                "DistributedTrainer"
            ) from None

    def reduce(self, key: int | str, gradients: Sequence[NDArray], priority: int) -> None:
        """Replaces the gradients, one for each of this rank's devices, by what all devices of all ranks have."""
        name, step = f"{self.prefix}gradient.{key}", self._steps.get().of_next(key)
        with one_call(name, step):
            gradient = sum_of_devices(gradients)
            staged = stage(gradient, f"gradient {key}")
            reduce_staged(staged, self.op, name, priority, self.compression, step)
        copy_to_all(gradient, gradients)


def any_rank(flags: Sequence[bool], name: str) -> list[bool]:
    """Which of the flags are set on some rank. Blocks until all ranks have called it, with as many flags."""
    array = mx.nd.array(flags, dtype="uint8", ctx=mx.cpu())
    byteps_push_pull(array, name=name, op=ReduceOp.Max)
    return [bool(flag) for flag in array.asnumpy()]


def priority_of(key: int | str) -> int:
    """Of a parameter by its number: what the next forward pass needs first goes first."""
    return -key if isinstance(key, int) else 0


_NUMBER = re.compile(r"\d+")


def _without_counts(names: Sequence[str]) -> list[str]:
    """Replaces each number in the names by its rank among the numbers that follow the same text."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for name in names:
        for match in _NUMBER.finditer(name):
            numbers[_NUMBER.sub("#", name[: match.start()])].add(int(match[0]))
    ordinals = {
        text: {number: ordinal for ordinal, number in enumerate(sorted(them))} for text, them in numbers.items()
    }

    def ordinal_of(match: re.Match[str]) -> str:
        return str(ordinals[_NUMBER.sub("#", match.string[: match.start()])][int(match[0])])

    return [_NUMBER.sub(ordinal_of, name) for name in names]
