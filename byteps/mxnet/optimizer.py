"""DistributedOptimizer: an optimizer of MXNet that averages gradients over all ranks."""

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
    """Makes an optimizer average each gradient over all ranks before it updates the weight.

    For `Module` and for gluon's `Trainer`, with a kvstore of this rank only ('local', 'device' or
    None). With BYTEPS_ENABLE_ASYNC=1 training is asynchronous: see `byteps.mxnet.asynchronous`.

    Args:
        optimizer: of any class. The same object is returned; its learning rate, rescale_grad and
            other attributes do not change. Copies and pickles have its plain class.
        compression: one of `Compression`.
        op: Average or Sum.

    Raises:
        InvalidArgumentError: not an optimizer, or a distributed one. At the first update, on all
            ranks: their arguments differ, or only some of them train asynchronously.
        UnsupportedError: compression in asynchronous training.
        NotInitializedError: before `init`.
    """
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise ArgumentTypeError(
            f"DistributedOptimizer: {optimizer!r:.80} given: expected an Optimizer, such as mx.optimizer.create('sgd')"
            "; a net of gluon is trained by DistributedTrainer(net.collect_params(), 'sgd')"
        )
    if is_distributed(optimizer):
        raise InvalidArgumentError("DistributedOptimizer: this optimizer is distributed already")
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
    """Whether `optimizer` is a DistributedOptimizer."""
    return isinstance(optimizer, Extended)


class _Distributed(Extended):
    """The base class added to the optimizer's: reduces gradients before an update."""

    def around(self, updates: Sequence[Update], update: Callable[[], None]) -> None:
        for key, _, gradient in updates:
            self.exchange.reduce(key, [gradient], priority_of(key))
        update()
