"""DistributedTrainer: gluon's Trainer with gradients averaged over all ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import Parameter

from byteps.agreement import look_for_differences
from byteps.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from byteps.mxnet.broadcast import broadcast_arrays, broadcast_parameter, check_parameters, in_common_order
from byteps.mxnet.compression import AnyCompressor, Compression
from byteps.mxnet.exchange import GradientExchange, any_rank
from byteps.mxnet.optimizer import DistributedOptimizer
from byteps.mxnet.updates import Extended, hyperparameters_of, retract
from byteps.ops import ReduceOp, check_root
from byteps.runtime import current_job

__all__ = ["DistributedTrainer", "compressor_of"]

log = logging.getLogger("byteps")

# BytePS's compression_params: _CHOICES turn compression on, _DETAILS configure it.
_CHOICES = ("compressor", "ef", "momentum")
_DETAILS = ("k", "normalize", "partition", "scaling", "seed")


class DistributedTrainer(mx.gluon.Trainer):
    """A Trainer whose step averages the gradients of all ranks.

    `step(batch_size)` takes the size of this rank's batch. All ranks begin with the parameters of
    rank `root_rank`; `broadcast_parameters` is not needed. If backward adds gradients up
    (grad_req='add'), a step after several backward passes sends their sum once.

    With BYTEPS_ENABLE_ASYNC=1 training is asynchronous: see `byteps.mxnet.asynchronous`. Then call
    `settle` before the parameters are evaluated or saved.

    Args:
        params: the result of `collect_params()`, a dict or a list; the same on all ranks, except
            for names.
        optimizer: name of an optimizer, or an Optimizer. A distributed one becomes a plain one
            again.
        optimizer_params: arguments of the optimizer, if `optimizer` is a name.
        root_rank: the rank whose parameters all ranks begin with.
        compression_params: {'fp16': True} sends gradients in half precision. BytePS's other
            parameters are accepted if they turn no compression on: without 'compressor', 'ef' and
            'momentum', or with '' for them.

    Raises:
        InvalidArgumentError: invalid arguments. On all ranks: their parameters differ.
        UnsupportedError: another compression; weights in sparse rows.
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
        if isinstance(params, mx.gluon.Block):
            raise ArgumentTypeError(
                "DistributedTrainer: got a net, expected its parameters: DistributedTrainer(net.collect_params(), ...)"
            )
        compression = compressor_of(compression_params)
        if isinstance(optimizer, Extended):
            log.warning(
                "DistributedTrainer averages gradients itself: the DistributedOptimizer becomes a plain optimizer"
            )
            retract(optimizer)
        super().__init__(params, optimizer, dict(optimizer_params or {}) or None, kvstore=None)
        if self._contains_sparse_weight:
            raise UnsupportedError("DistributedTrainer: weights in sparse rows are not supported: use dense ones")
        self._root_rank = root_rank
        self._exchange = GradientExchange(ReduceOp.Average, compression)
        self._ignores_stale = False
        self._asynchronous = current_job().config.asynchronous
        self._named = list(params.items()) if hasattr(params, "items") else None
        self._synchronize_parameters()
        if self._asynchronous:
            DistributedOptimizer(self._optimizer)

    def _synchronize_parameters(self) -> None:
        """Compares the ranks' parameters and broadcasts the root's. Once in each job."""
        # Gluon sorts by name: dense10 before dense9, but dense0 before dense1 on another rank.
        named = None if self._named is None else in_common_order(self._named, self._exchange.prefix)
        in_order = self._params if named is None else [parameter for _, parameter in named]
        self._indices = {parameter: index for index, parameter in enumerate(in_order)}
        requests = [f"parameter {index}: grad_req '{each.grad_req}'" for each, index in self._indices.items()]
        self._exchange.check_agreement("DistributedTrainer", requests)
        check_parameters("DistributedTrainer", list(self._indices), self._exchange.prefix)
        for parameter, index in self._indices.items():
            broadcast_parameter(parameter, index, self._root_rank, self._exchange.prefix)

    def _join(self) -> None:
        """Does the same as ranks that create their Trainer now, at the first use in a job."""
        if not self._exchange.is_of_this_job:
            self._synchronize_parameters()
            self._params_to_init = list(self._params)

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Reduces gradients and updates parameters.

        Args:
            batch_size: size of this rank's batch.
            ignore_stale_grad: do not update parameters that have no new gradient on any rank. If
                only some ranks have one, the gradients of the others count as 0. Waits for a small
                push_pull. Not supported in asynchronous training.
        """
        if ignore_stale_grad and self._asynchronous:
            raise UnsupportedError(
                "DistributedTrainer: ignore_stale_grad=True is not supported in asynchronous training"
            )
        self._join()
        with self._ignoring_stale(ignore_stale_grad):
            super().step(batch_size, ignore_stale_grad)

    def settle(self) -> None:
        """Gives all ranks the same weights, if training is asynchronous.

        Blocks until all ranks have called it.
        """
        if self._asynchronous:
            self._optimizer.settle()

    def allreduce_grads(self, ignore_stale_grad: bool = False) -> None:
        """Reduces gradients as `step` does. Pass the same `ignore_stale_grad` to `update`."""
        self._join()
        with self._ignoring_stale(ignore_stale_grad):
            super().allreduce_grads()

    @contextmanager
    def _ignoring_stale(self, ignores: bool) -> Iterator[None]:
        """Passes `ignores` to `_allreduce_grads`, which gluon calls without arguments."""
        self._ignores_stale = ignores
        try:
            yield
        finally:
            self._ignores_stale = False

    def _init_params(self) -> None:
        """Broadcasts before the first step: a rank may have loaded its parameters from a file."""
        for parameter in self._params_to_init:
            if parameter._data is not None:
                index = self._indices[parameter]
                broadcast_arrays(parameter.list_data(), index, self._root_rank, self._exchange.prefix)
        self._params_to_init = []
        if not self._asynchronous:
            look_for_differences(
                "DistributedTrainer",
                list,  # parameters need no comparison: all ranks have the root's
                lambda: hyperparameters_of(self._optimizer),
                f"{self._exchange.prefix}differences",
            )

    def _allreduce_grads(self) -> None:
        if self._asynchronous:
            return
        trained = [parameter for parameter in self._indices if parameter.grad_req != "null"]
        if self._ignores_stale:
            trained = self._fresh_anywhere(trained)
        for parameter in trained:
            index = self._indices[parameter]
            self._exchange.reduce(index, parameter.list_grad(), -index)

    def _fresh_anywhere(self, trained: list[Parameter]) -> list[Parameter]:
        """Returns the parameters with a new gradient on any rank.

        Sets this rank's stale ones to 0.
        """
        mine = [any(data._fresh_grad for data in parameter.list_data()) for parameter in trained]
        fresh = any_rank(mine, f"{self._exchange.prefix}fresh")
        chosen = [parameter for parameter, is_fresh in zip(trained, fresh, strict=True) if is_fresh]
        for parameter in chosen:
            for data, gradient in zip(parameter.list_data(), parameter.list_grad(), strict=True):
                if not data._fresh_grad:
                    gradient[:] = 0
                    data._fresh_grad = True
        return chosen


def compressor_of(params: Mapping[str, Any] | None) -> AnyCompressor:
    """Returns the compressor for BytePS's `compression_params`.

    Raises:
        InvalidArgumentError: unknown parameters.
        UnsupportedError: a compressor that this version does not support.
    """
    params = dict(params or {})
    unknown = params.keys() - {"fp16", *_CHOICES, *_DETAILS}
    if unknown:
        raise InvalidArgumentError(
            f"compression_params: {', '.join(map(repr, sorted(unknown)))}: expected some of fp16, "
            f"{', '.join((*_CHOICES, *_DETAILS))}"
        )
    chosen = {name: params[name] for name in _CHOICES if params.get(name)}
    if chosen:
        raise UnsupportedError(
            f"compression_params: {chosen}: this version compresses by casting only: {{'fp16': True}}"
        )
    return Compression.fp16 if params.get("fp16") else Compression.none
