"""Asynchronous training: the summation services hold the weights, and ranks push changes of them.

`DistributedOptimizer` and the kvstore use this with BYTEPS_ENABLE_ASYNC=1. An update runs the plain
optimizer on this rank's gradient. The change of the weight is then added to the value that the
services hold, and the weight becomes that value. All of this runs in the engine. See docs/async.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import mxnet as mx
import numpy as np

from byteps.asynchronous import SKIPPED_UPDATE, change_divisor, settle_weights
from byteps.errors import UnsupportedError
from byteps.mxnet.exchange import GradientExchange, priority_of
from byteps.mxnet.native import push
from byteps.mxnet.tensor import stage
from byteps.mxnet.updates import Extended, Update, extend
from byteps.ops import ACCUMULATE, SEED, staleness_code
from byteps.per_job import PerJob
from byteps.runtime import current_job

__all__ = ["make_asynchronous"]

NDArray: TypeAlias = mx.nd.NDArray

log = logging.getLogger("byteps")


def make_asynchronous(optimizer: mx.optimizer.Optimizer, exchange: GradientExchange) -> None:
    """Makes `optimizer` train asynchronously.

    Args:
        optimizer: of any class.
        exchange: gives names and the operation. Average: each rank's change counts 1 / size, as its
            gradient would; Sum: each change counts in full, as in BytePS.
    """
    extend(optimizer, _Asynchronous, exchange, _Weights(exchange))


class _Asynchronous(Extended):
    """The base class added to the optimizer's: updates set weights to the services' values."""

    extension: _Weights

    def settle(self) -> None:
        """Gives all ranks the same weights, with the changes of every rank.

        Blocks until all ranks have called it. Call it before the weights are evaluated or saved,
        and at the end of training.
        """
        self.extension.settle()

    def around(self, updates: Sequence[Update], update: Callable[[], None]) -> None:
        """Raises UnsupportedError for weights in half precision or on several devices."""
        if current_job().size == 1:
            update()
        else:
            self.extension.update({key: weight for key, weight, _ in updates}, update)


class _Weights:
    """The weights of one optimizer, and their last values received from the services."""

    def __init__(self, exchange: GradientExchange) -> None:
        self._exchange = exchange
        self._staleness = staleness_code(current_job().config.staleness)
        self._weights: dict[int | str, NDArray] = {}
        self._received: PerJob[dict[int | str, NDArray]] = PerJob(dict)

    @property
    def _bases(self) -> dict[int | str, NDArray]:
        """The last values received in the current job, by key."""
        return self._received.get()

    def update(self, weights: dict[int | str, NDArray], update: Callable[[], None]) -> None:
        """Calls `update`, which changes the weights, and exchanges the changes."""
        joining = {index: weight for index, weight in weights.items() if index not in self._bases}
        if joining and self._join(joining):
            log.info(SKIPPED_UPDATE)
        else:
            update()
        for index, weight in weights.items():
            base = self._bases[index]
            if weight.context != base.context:
                raise UnsupportedError(
                    f"asynchronous training of parameter {index} on {base.context} and {weight.context}: give each "
                    "rank one device, or use the kvstore 'dist_byteps'"
                )
            change = weight - base
            if (divisor := change_divisor(self._exchange.op)) > 1:
                change /= divisor
            self._push(index, change, base, ACCUMULATE)
            base.copyto(weight)

    def settle(self) -> None:
        if current_job().size > 1:
            mx.nd.waitall()
            settle_weights(self._read)

    def _read(self) -> None:
        for index, base in self._bases.items():
            self._push(index, base, base, SEED)
            base.copyto(self._weights[index])
        mx.nd.waitall()

    def _join(self, weights: dict[int | str, NDArray]) -> bool:
        """Replaces the weights by the services' values. Returns whether that changed them.

        The values are those of rank 0 at its first update, with all changes since.
        """
        for index, weight in weights.items():
            if weight.dtype == np.float16:
                raise UnsupportedError(
                    f"asynchronous training of parameter {index} in float16: the changes of a step are too small for "
                    "this precision; use float32, or train synchronously"
                )
            base = weight.copy()
            self._push(index, base, base, SEED)
            self._weights[index], self._bases[index] = weight, base
        changed = False
        for index, weight in weights.items():
            base = self._bases[index]
            changed = changed or not np.array_equal(base.asnumpy(), weight.asnumpy())
            base.copyto(weight)
        return changed

    def _push(self, index: int | str, source: NDArray, target: NDArray, op: int) -> None:
        given, got = stage(source, "asynchronous training"), stage(target, "asynchronous training")
        name = f"{self._exchange.prefix}weight.{index}"
        push(
            given.array,
            got.array,
            got.nbytes,
            name,
            got.dtype,
            op,
            priority=priority_of(index),
            staleness=self._staleness,
        )
        got.copy_back()
