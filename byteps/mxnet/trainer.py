"""DistributedTrainer: gluon's Trainer, by the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import Parameter

from byteps.agreement import check_agreement
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.mxnet.broadcast import broadcast_arrays, broadcast_parameter, check_parameters
from byteps.mxnet.compression import Compression, Compressor
from byteps.mxnet.exchange import Exchange, any_rank
from byteps.mxnet.optimizer import DistributedOptimizer, is_distributed
from byteps.ops import ReduceOp, check_root
from byteps.runtime import current_job

__all__ = ["DistributedTrainer", "compressor_of"]


class DistributedTrainer(mx.gluon.Trainer):
    """A Trainer whose step averages the gradients of all ranks. Everything else is as in gluon.

    `step(batch_size)` takes the size of this rank's batch. All ranks begin with the parameters of rank `root_rank`; no
    `broadcast_parameters` is needed. Where backward adds gradients up (grad_req='add'), a step after several backward
    passes sends them once.

    With BYTEPS_ENABLE_ASYNC=1 training is asynchronous: `byteps.mxnet.asynchronous`. Then call
    `trainer.optimizer.settle()` before the parameters are evaluated or saved.

    Args:
        params: what `collect_params()` returns, a dict or a list; the same on all ranks, but for names.
        optimizer: name of an optimizer, or an Optimizer that is not distributed.
        optimizer_params: for the optimizer, if its name is given.
        root_rank: whose parameters all ranks begin with.
        compression_params: {'fp16': True} sends gradients in half precision.

    Raises:
        InvalidArgumentError: arguments that cannot be used. On all ranks: their parameters differ.
        UnsupportedError: another compression.
        NotInitializedError: before `init`.
    """

    _params_to_init: list[Parameter]

    def __init__(
        self,
        params: Any,
        optimizer: str | mx.optimizer.Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        root_rank: int = 0,
        compression_params: Mapping[str, Any] | None = None,
    ) -> None:
        check_root(root_rank)
        if isinstance(optimizer, mx.optimizer.Optimizer) and is_distributed(optimizer):
            raise InvalidArgumentError("DistributedTrainer: give it the plain optimizer, not a DistributedOptimizer")
        compression = compressor_of(compression_params)
        super().__init__(params, optimizer, dict(optimizer_params or {}) or None, kvstore=None)
        self._root_rank = root_rank
        self._exchange = Exchange(ReduceOp.Average, compression)
        self._ignores_stale = False
        self._asynchronous = current_job().config.asynchronous
        if self._asynchronous:
            DistributedOptimizer(self._optimizer)
        in_order = list(params.values()) if hasattr(params, "values") else self._params  # gluon sorts them by name
        self._places = {parameter: place for place, parameter in enumerate(in_order)}
        requests = [f"parameter {n}: grad_req '{each.grad_req}'" for n, each in enumerate(self._params)]
        check_agreement("DistributedTrainer", requests, f"{self._exchange.prefix}requests")
        check_parameters("DistributedTrainer", self._params, self._exchange.prefix)
        for number, parameter in enumerate(self._params):
            broadcast_parameter(parameter, number, root_rank, self._exchange.prefix)

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """As in gluon.

        Args:
            batch_size: of this rank.
            ignore_stale_grad: parameters that backward has not reached since the last step on any rank are left as they
                are. Where it has on some ranks only, the others' gradients count as 0. Costs a small push_pull, and
                waits for it.
        """
        self._ignores_stale = ignore_stale_grad
        try:
            super().step(batch_size, ignore_stale_grad)
        finally:
            self._ignores_stale = False

    def allreduce_grads(self, ignore_stale_grad: bool = False) -> None:
        """As in gluon; `ignore_stale_grad` as `update` will be told."""
        self._ignores_stale = ignore_stale_grad
        try:
            super().allreduce_grads()
        finally:
            self._ignores_stale = False

    def _init_params(self) -> None:
        """Gluon calls it before the first step: one rank may have loaded a file into its parameters meanwhile."""
        for parameter in self._params_to_init:
            if parameter._data is not None:
                number = self._param2idx[parameter.name]
                broadcast_arrays(parameter.list_data(), number, self._root_rank, self._exchange.prefix)
        self._params_to_init = []

    def _allreduce_grads(self) -> None:
        if self._asynchronous:
            return
        trained = [number for number, parameter in enumerate(self._params) if parameter.grad_req != "null"]
        if self._ignores_stale:
            trained = self._fresh_anywhere(trained)
        for number in trained:
            parameter = self._params[number]
            self._exchange.reduce(number, parameter.list_grad(), -self._places[parameter])

    def _fresh_anywhere(self, trained: list[int]) -> list[int]:
        """Those of the parameters that some rank has a new gradient of. Where this rank has none, 0 is its part."""
        mine = {number: any(data._fresh_grad for data in self._params[number].list_data()) for number in trained}
        fresh = any_rank([mine[number] for number in trained], f"{self._exchange.prefix}fresh")
        numbers = [number for number, is_fresh in zip(trained, fresh, strict=True) if is_fresh]
        for number in numbers:
            for data, gradient in zip(self._params[number].list_data(), self._params[number].list_grad(), strict=True):
                if not data._fresh_grad:
                    gradient[:] = 0
                    data._fresh_grad = True
        return numbers


def compressor_of(params: Mapping[str, Any] | None) -> type[Compressor]:
    """The compressor that BytePS's `compression_params` ask for.

    Raises:
        UnsupportedError: one that this version does not have.
    """
    params = dict(params or {})
    half = params.pop("fp16", False)
    if params:
        raise UnsupportedError(
            f"compression_params: {', '.join(map(repr, params))}: this version compresses by casting only: "
            "{'fp16': True}"
        )
    return Compression.fp16 if half else Compression.none
