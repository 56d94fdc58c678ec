"""The exchange of gradients between ranks, and between the devices of a rank."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import mxnet as mx

from byteps.agreement import check_agreement
from byteps.asynchronous import describe_mode
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
    """Counts the steps of one exchange in one job. A step ends when one of its keys is used again.

    So all keys agree on the step, also after a step that was interrupted on one rank.
    """

    def __init__(self) -> None:
        self._step = 1
        self._keys: set[int | str] = set()  # used in this step

    def of_next(self, key: int | str) -> int:
        """Returns the number of the step that this use of the key belongs to."""
        if key in self._keys:
            self._step += 1
            self._keys.clear()
        self._keys.add(key)
        return self._step


class GradientExchange:
    """The gradients of one optimizer, trainer or kvstore.

    All ranks must create the same exchanges in the same order. In another job, after `suspend` and
    `resume`, exchanges get new numbers and the ranks compare them again when they are used.
    """

    def __init__(self, op: ReduceOp, compression: AnyCompressor = Compression.none) -> None:
        compressor_name(compression)  # raises an error for anything but a compressor
        self._number = JobNumber("mxnet.GradientExchange")
        self.op = op
        self.compression = compression
        self._steps = PerJob(_Steps)

    @property
    def is_of_this_job(self) -> bool:
        """Whether this exchange has been used in the current job."""
        return self._number.is_of(current_job())

    @property
    def prefix(self) -> str:
        """The beginning of the names of its arrays, which tells models apart."""
        return f"mxnet.{self._number.get()}."

    def check_agreement(self, caller: str, lines: Sequence[str] = ()) -> None:
        """Raises an error on all ranks if their options differ.

        Blocks until all ranks have called it.


        Args:
            caller: beginning of the error message.
            lines: other things that must be the same on all ranks.

        Raises:
            InvalidArgumentError: they differ.
            UnsupportedError: compression in asynchronous training.
        """
        config = current_job().config
        mode = describe_mode(config.staleness if config.asynchronous else None)
        options = f"{mode}, op={self.op.name}, {compressor_name(self.compression)}"
        check_agreement(caller, [options, *lines], f"{self.prefix}agreement")
        self.check_supported(caller)

    def check_supported(self, caller: str) -> None:
        """Raises UnsupportedError for compression in asynchronous training."""
        if current_job().config.asynchronous and not sends_as_is(self.compression):
            raise UnsupportedError(f"{caller}: asynchronous training supports no compression")

    def check_names(self, caller: str, names: Sequence[str], *, exactly: bool = False) -> None:
        """Raises InvalidArgumentError on all ranks if the order of their parameters differs.

        Blocks until all ranks have called it.

        Args:
            caller: beginning of the error message.
            names: names of the parameters, in the order of their keys.
            exactly: the names must be the same on all ranks. Otherwise the numbers that gluon gives
                to blocks may differ, but must have the same order: gluon sorts by name, so
                `dense10` comes before `dense9`, while another rank has `dense0` before `dense1`.
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
        """Replaces the gradients, one for each device of this rank, by the reduced gradient.

        The gradients of a rank's devices are summed first.
        """
        name, step = f"{self.prefix}gradient.{key}", self._steps.get().of_next(key)
        with one_call(name, step):
            gradient = sum_of_devices(gradients)
            staged = stage(gradient, f"gradient {key}")
            reduce_staged(staged, self.op, name, priority, self.compression, step)
        copy_to_all(gradient, gradients)


def any_rank(flags: Sequence[bool], name: str) -> list[bool]:
    """Returns for each flag whether it is set on any rank. Blocks until all ranks have called it.

    All ranks must pass the same number of flags.
    """
    array = mx.nd.array(flags, dtype="uint8", ctx=mx.cpu())
    byteps_push_pull(array, name=name, op=ReduceOp.Max)
    return [bool(flag) for flag in array.asnumpy()]


def priority_of(key: int | str) -> int:
    """Returns a parameter's priority: those that the next forward pass needs first go first."""
    return -key if isinstance(key, int) else 0


_NUMBER = re.compile(r"\d+")


def _without_counts(names: Sequence[str]) -> list[str]:
    """Replaces each number in names by its index among the numbers that follow the same text."""
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
