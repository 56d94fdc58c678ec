"""DistributedOptimizer: an optimizer of MXNet that updates by the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, cast

import mxnet as mx

from byteps.errors import InvalidArgumentError
from byteps.mxnet.asynchronous import make_asynchronous
from byteps.mxnet.compression import Compression, Compressor
from byteps.mxnet.exchange import Exchange, priority_of
from byteps.ops import ReduceOp
from byteps.reclass import Reclassed, reclass
from byteps.runtime import current_job

__all__ = ["DistributedOptimizer", "is_distributed"]

NDArray: TypeAlias = mx.nd.NDArray
OptimizerT = TypeVar("OptimizerT", bound=mx.optimizer.Optimizer)


def DistributedOptimizer(  # noqa: N802  (BytePS's name)
    optimizer: OptimizerT, compression: type[Compressor] = Compression.none, op: ReduceOp = ReduceOp.Average
) -> OptimizerT:
    """Makes an optimizer average each gradient over all ranks before it updates by it.

    For `Module` and for gluon's `Trainer`, both with a kvstore of this rank alone ('local', 'device' or None). With
    BYTEPS_ENABLE_ASYNC=1 training is asynchronous: `byteps.mxnet.asynchronous`.

    Args:
        optimizer: of any class. The same object is returned, so what holds it stays valid; its learning rate, its
            rescale_grad and so on are its own. Copies and pickles are of its plain class.
        compression: one of `Compression`, for the way over the network.
        op: Average or Sum.

    Raises:
        InvalidArgumentError: no optimizer, or a distributed one.
        NotInitializedError: before `init`.
    """
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise InvalidArgumentError(
            f"DistributedOptimizer: {optimizer!r:.80} given: expected an Optimizer, such as mx.optimizer.create('sgd')"
        )
    if is_distributed(optimizer):
        raise InvalidArgumentError("DistributedOptimizer: this optimizer is a distributed one already")
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise InvalidArgumentError(f"DistributedOptimizer: op is {op!r}: expected Average or Sum")
    if current_job().config.asynchronous:
        return make_asynchronous(optimizer, op)
    exchange = Exchange(op, compression)
    reclass(optimizer, _Distributed)
    cast("_Distributed", optimizer)._exchange = exchange
    return optimizer


def is_distributed(optimizer: mx.optimizer.Optimizer) -> bool:
    """Whether it exchanges something with other ranks."""
    return isinstance(optimizer, Reclassed)


class _Distributed(Reclassed, mx.optimizer.Optimizer):
    """What DistributedOptimizer adds to the optimizer's class."""

    _exchange: Exchange
    _is_reduced = False  # within an update whose gradients are those of all ranks

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As in the plain class, by the gradients of all ranks. `index` and the others may be lists."""
        with self._reduced(index, grad):
            super().update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As in the plain class, by the gradients of all ranks, in the precision that they have."""
        with self._reduced(index, grad):
            super().update_multi_precision(index, weight, grad, state)

    @contextmanager
    def _reduced(self, index: Any, grad: Any) -> Iterator[None]:
        """One of the methods above calls the other one, with gradients of another precision."""
        if self._is_reduced:
            yield
            return
        several = isinstance(index, (list, tuple))
        for number, gradient in zip(index if several else [index], grad if several else [grad], strict=True):
            self._exchange.reduce(number, [gradient], priority_of(number))
        self._is_reduced = True
        try:
            yield
        finally:
            self._is_reduced = False

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {key: value for key, value in state.items() if key not in ("_exchange", "_is_reduced")}
