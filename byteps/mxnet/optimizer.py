"""DistributedOptimizer: an optimizer of MXNet that updates by the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import mxnet as mx

from byteps.errors import ArgumentTypeError, InvalidArgumentError
from byteps.mxnet.asynchronous import make_asynchronous
from byteps.mxnet.compression import AnyCompressor, Compression
from byteps.mxnet.exchange import GradientExchange, priority_of
from byteps.mxnet.updates import Extended, Update, extend
from byteps.ops import ReduceOp
from byteps.runtime import current_job

__all__ = ["DistributedOptimizer", "is_distributed"]

OptimizerT = TypeVar("OptimizerT", bound=mx.optimizer.Optimizer)


def DistributedOptimizer(  # noqa: N802  (BytePS's name)
    optimizer: OptimizerT, compression: AnyCompressor = Compression.none, op: ReduceOp = ReduceOp.Average
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
        InvalidArgumentError: no optimizer, or a distributed one. From the first update, on all ranks: they call this
            with other arguments, or some of them train asynchronously.
        UnsupportedError: compression of asynchronous training.
        NotInitializedError: before `init`.
    """
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise ArgumentTypeError(
            f"DistributedOptimizer: {optimizer!r:.80} given: expected an Optimizer, such as mx.optimizer.create('sgd')"
            "; a net of gluon is trained by DistributedTrainer(net.collect_params(), 'sgd')"
        )
    if is_distributed(optimizer):
        raise InvalidArgumentError("DistributedOptimizer: this optimizer is a distributed one already")
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise InvalidArgumentError(f"DistributedOptimizer: op is {op!r}: expected Average or Sum")
    exchange = GradientExchange(op, compression)
    exchange.check_supported("DistributedOptimizer")
    if current_job().config.asynchronous:
        make_asynchronous(optimizer, exchange)
    else:
        extend(optimizer, _Distributed, exchange)
    return optimizer


def is_distributed(optimizer: mx.optimizer.Optimizer) -> bool:
    """Whether it exchanges something with other ranks."""
    return isinstance(optimizer, Extended)


class _Distributed(Extended):
    """What DistributedOptimizer adds to the optimizer's class: updates are by the gradients of all ranks."""

    def around(self, updates: Sequence[Update], update: Callable[[], None]) -> None:
        for key, _, gradient in updates:
            self.exchange.reduce(key, [gradient], priority_of(key))
        update()
