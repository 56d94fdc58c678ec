"""Asynchronous training: the summation services keep the weights, and ranks push what they change in them.

What `DistributedOptimizer` and the kvstore make of an optimizer with BYTEPS_ENABLE_ASYNC=1. An update runs the plain
optimizer on this rank's own gradient; then what the rank has changed in the weight is added to what the services
keep, and the weight becomes what the services have by then. All of it happens in the engine. docs/async.md has the
reasons.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import mxnet as mx
import numpy as np

from byteps.errors import UnsupportedError
from byteps.mxnet.exchange import Exchange, priority_of
from byteps.mxnet.native import push
from byteps.mxnet.tensor import stage
from byteps.ops import ACCUMULATE, SEED, UNBOUNDED, ReduceOp
from byteps.reclass import Reclassed, reclass
from byteps.runtime import Job, current_job

__all__ = ["make_asynchronous"]

NDArray: TypeAlias = mx.nd.NDArray
OptimizerT = TypeVar("OptimizerT", bound=mx.optimizer.Optimizer)

log = logging.getLogger("byteps")


def make_asynchronous(optimizer: OptimizerT, op: ReduceOp) -> OptimizerT:
    """Makes `optimizer` keep its weights in the summation services, and returns it.

    Args:
        optimizer: of any class; the same object is returned.
        op: Average: each rank's change counts 1 / size, as its gradient would; Sum: as a whole, as in BytePS.
    """
    reclass(optimizer, _Asynchronous)
    cast("_Asynchronous", optimizer)._weights = _Weights(op)
    return optimizer


class _Asynchronous(Reclassed, mx.optimizer.Optimizer):
    """What is added to the optimizer's class."""

    _weights: _Weights
    _is_within = False  # an update, which may call the other method

    def settle(self) -> None:
        """Blocks until all ranks have called it; then all have the weights with every rank's changes in them.

        Before the weights are evaluated or saved, and at the end.
        """
        self._weights.settle()

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As in the plain class; then `weight` is what the services have."""
        self._exchanged(index, weight, lambda: super(_Asynchronous, self).update(index, weight, grad, state))

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As in the plain class; then `weight` is what the services have.

        Raises:
            UnsupportedError: a weight of half precision, whose exact value is in the optimizer's state.
        """
        self._exchanged(
            index, weight, lambda: super(_Asynchronous, self).update_multi_precision(index, weight, grad, state)
        )

    def _exchanged(self, index: Any, weight: Any, update: Callable[[], None]) -> None:
        if self._is_within or current_job().size == 1:
            return update()
        several = isinstance(index, (list, tuple))
        weights = dict(zip(index, weight, strict=True)) if several else {index: weight}
        self._is_within = True
        try:
            self._weights.update(weights, update)
        finally:
            self._is_within = False

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {key: value for key, value in state.items() if key not in ("_weights", "_is_within")}


class _Weights:
    """The weights of one optimizer, and their values as the services last gave them."""

    def __init__(self, op: ReduceOp) -> None:
        self._names = Exchange(op)
        self._is_scaled = op is ReduceOp.Average
        self._job = current_job()
        self._staleness = self._job.config.staleness
        self._weights: dict[int | str, NDArray] = {}
        self._bases: dict[int | str, NDArray] = {}

    def update(self, weights: dict[int | str, NDArray], update: Callable[[], None]) -> None:
        """Has `update` change the weights, and exchanges the changes."""
        self._begin(current_job())
        joining = {index: weight for index, weight in weights.items() if index not in self._bases}
        if joining and self._join(joining):
            log.info("the weights have moved on since this rank got them: it makes no update in its first step")
        else:
            update()
        for index, weight in weights.items():
            base = self._bases[index]
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

    def _begin(self, job: Job) -> None:
        if self._job is not job:  # another one, after suspend and resume: what was kept ended with the old one
            self._job = job
            self._bases.clear()

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
        staleness = UNBOUNDED if self._staleness == math.inf else int(self._staleness)
        given, got = stage(source, "asynchronous training"), stage(target, "asynchronous training")
        name = f"{self._names.prefix}weight.{index}"
        push(given.array, got.array, got.nbytes, name, got.dtype, op, priority=priority_of(index), staleness=staleness)
        got.copy_back()
