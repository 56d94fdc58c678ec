"""Asynchronous training: the summation services keep the weights, and ranks push what they change in them.

What `DistributedOptimizer` and the kvstore make of an optimizer with BYTEPS_ENABLE_ASYNC=1. An update runs the plain
optimizer on this rank's own gradient; then what the rank has changed in the weight is added to what the services
keep, and the weight becomes what the services have by then. All of it happens in the engine. docs/async.md has the
reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import mxnet as mx
import numpy as np

from byteps.errors import UnsupportedError
from byteps.mxnet.exchange import GradientExchange, priority_of
from byteps.mxnet.native import push
from byteps.mxnet.tensor import stage
from byteps.mxnet.updates import Extended, Update, extend
from byteps.ops import ACCUMULATE, SEED, ReduceOp, staleness_code
from byteps.per_job import PerJob
from byteps.runtime import current_job

__all__ = ["make_asynchronous"]

NDArray: TypeAlias = mx.nd.NDArray

log = logging.getLogger("byteps")


def make_asynchronous(optimizer: mx.optimizer.Optimizer, exchange: GradientExchange) -> None:
    """Makes `optimizer` keep its weights in the summation services.

    Args:
        optimizer: of any class.
        exchange: its names and op. Average: each rank's change counts 1 / size, as its gradient would; Sum: as a whole,
            as in BytePS.
    """
    extend(optimizer, _Asynchronous, exchange, _Weights(exchange))


class _Asynchronous(Extended):
    """What is added to the optimizer's class: after an update the weights are what the services have."""

    extension: _Weights

    def settle(self) -> None:
        """Blocks until all ranks have called it; then all have the weights with every rank's changes in them.

        Before the weights are evaluated or saved, and at the end.
        """
        self.extension.settle()

    def around(self, updates: Sequence[Update], update: Callable[[], None]) -> None:
        """Raises UnsupportedError for weights of half precision, or on a second device."""
        if current_job().size == 1:
            update()
        else:
            self.extension.update({key: weight for key, weight, _ in updates}, update)


class _Weights:
    """The weights of one optimizer, and their values as the services last gave them, which end with a job."""

    def __init__(self, exchange: GradientExchange) -> None:
        self._exchange = exchange
        self._is_scaled = exchange.op is ReduceOp.Average
        self._staleness = staleness_code(current_job().config.staleness)
        self._weights: dict[int | str, NDArray] = {}
        self._kept: PerJob[dict[int | str, NDArray]] = PerJob(dict)

    @property
    def _bases(self) -> dict[int | str, NDArray]:
        """What the services had when this rank asked last, of the weights that it has joined in this job."""
        return self._kept.get()

    def update(self, weights: dict[int | str, NDArray], update: Callable[[], None]) -> None:
        """Has `update` change the weights, and exchanges the changes."""
        joining = {index: weight for index, weight in weights.items() if index not in self._bases}
        if joining and self._join(joining):
            log.info("the weights have moved on since this rank got them: it makes no update in its first step")
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
            if self._is_scaled:
                change /= current_job().size
            self._push(index, change, base, ACCUMULATE)
            base.copyto(weight)

    def settle(self) -> None:
        job = current_job()
        if job.size == 1:
            return
        mx.nd.waitall()
        job.node.barrier()  # every change of every rank has been answered
        for index, base in self._bases.items():
            self._push(index, base, base, SEED)
            base.copyto(self._weights[index])
        mx.nd.waitall()
        job.node.barrier()  # nobody leaves, and takes along what others have not got yet

    def _join(self, weights: dict[int | str, NDArray]) -> bool:
        """Gets rank 0's weights, with all changes since. Whether they differ from what this rank has."""
        for index, weight in weights.items():
            if weight.dtype == np.float16:
                raise UnsupportedError(
                    f"asynchronous training of parameter {index} in float16: what a step changes in it is too little "
                    "for that precision to hold; use float32, or train synchronously"
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
