"""DistributedTrainer: gluon's Trainer, by the gradients of all ranks."""

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

# BytePS's compression_params: what is to be done, and how, which means nothing without.
_CHOICES = ("compressor", "ef", "momentum")
_DETAILS = ("k", "normalize", "partition", "scaling", "seed")


class DistributedTrainer(mx.gluon.Trainer):
    """A Trainer whose step averages the gradients of all ranks. Everything else is as in gluon.

    `step(batch_size)` takes the size of this rank's batch. All ranks begin with the parameters of rank `root_rank`; no
    `broadcast_parameters` is needed. Where backward adds gradients up (grad_req='add'), a step after several backward
    passes sends them once.

    With BYTEPS_ENABLE_ASYNC=1 training is asynchronous: `byteps.mxnet.asynchronous`. Then call `settle` before the
    parameters are evaluated or saved.

    Args:
        params: what `collect_params()` returns, a dict or a list; the same on all ranks, but for names.
        optimizer: name of an optimizer, or an Optimizer. One that is distributed becomes a plain one again.
        optimizer_params: for the optimizer, if its name is given.
        root_rank: whose parameters all ranks begin with.
        compression_params: {'fp16': True} sends gradients in half precision. BytePS's other parameters are accepted as
            long as they ask for nothing: without a 'compressor', 'ef' and 'momentum', or with '' for them.

    Raises:
        InvalidArgumentError: arguments that cannot be used. On all ranks: their parameters differ.
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
                "DistributedTrainer: a net given: expected its parameters: "
                "DistributedTrainer(net.collect_params(), ...)"
            )
        compression = compressor_of(compression_params)
        if isinstance(optimizer, Extended):
            log.warning("DistributedTrainer averages gradients itself: the DistributedOptimizer is a plain one again")
            retract(optimizer)
        super().__init__(params, optimizer, dict(optimizer_params or {}) or None, kvstore=None)
        if self._contains_sparse_weight:
            raise UnsupportedError("DistributedTrainer: weights in sparse rows are not supported: use dense ones")
        self._root_rank = root_rank
        self._exchange = GradientExchange(ReduceOp.Average, compression)
        self._ignores_stale = False
        self._asynchronous = current_job().config.asynchronous
        self._named = list(params.items()) if hasattr(params, "items") else None
        self._begin_alike()
        if self._asynchronous:
            DistributedOptimizer(self._optimizer)

    def _begin_alike(self) -> None:
        """In each job: compares what the ranks have, and gives them the parameters of the root."""
        # Gluon sorts them by name, and so dense10 before dense9; on another rank they may be dense0 and dense1.
        named = None if self._named is None else in_common_order(self._named, self._exchange.prefix)
        in_order = self._params if named is None else [parameter for _, parameter in named]
        self._indices = {parameter: index for index, parameter in enumerate(in_order)}
        requests = [f"parameter {index}: grad_req '{each.grad_req}'" for each, index in self._indices.items()]
        self._exchange.check_agreement("DistributedTrainer", requests)
        check_parameters("DistributedTrainer", list(self._indices), self._exchange.prefix)
        for parameter, index in self._indices.items():
            broadcast_parameter(parameter, index, self._root_rank, self._exchange.prefix)

    def _join(self) -> None:
        """In another job than before: does what a rank does that makes its Trainer now."""
        if not self._exchange.is_of_this_job:
            self._begin_alike()
            self._params_to_init = list(self._params)

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """As in gluon.

        Args:
            batch_size: of this rank.
            ignore_stale_grad: parameters that backward has not reached since the last step on any rank are left as they
                are. Where it has on some ranks only, the others' gradients count as 0. Costs a small push_pull, and
                waits for it. Not if training is asynchronous.
        """
        if ignore_stale_grad and self._asynchronous:
            raise UnsupportedError(
                "DistributedTrainer: ignore_stale_grad=True in asynchronous training, in which ranks ask nobody"
            )
        self._join()
        with self._ignoring_stale(ignore_stale_grad):
            super().step(batch_size, ignore_stale_grad)

    def settle(self) -> None:
        """If training is asynchronous: blocks until all ranks have called it; then all have the same weights."""
        if self._asynchronous:
            self._optimizer.settle()

    def allreduce_grads(self, ignore_stale_grad: bool = False) -> None:
        """As in gluon; `ignore_stale_grad` as `update` will be told."""
        self._join()
        with self._ignoring_stale(ignore_stale_grad):
            super().allreduce_grads()

    @contextmanager
    def _ignoring_stale(self, ignores: bool) -> Iterator[None]:
        """For `_allreduce_grads`, which gluon calls without saying it."""
        self._ignores_stale = ignores
        try:
            yield
        finally:
            self._ignores_stale = False

    def _init_params(self) -> None:
        """Gluon calls it before the first step: one rank may have loaded a file into its parameters meanwhile."""
        for parameter in self._params_to_init:
            if parameter._data is not None:
                index = self._indices[parameter]
                broadcast_arrays(parameter.list_data(), index, self._root_rank, self._exchange.prefix)
        self._params_to_init = []
        if not self._asynchronous:
            look_for_differences(
                "DistributedTrainer",
                list,  # the parameters are rank 0's
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
        """Those of the parameters that some rank has a new gradient of. Where this rank has none, 0 is its part."""
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
    """The compressor that BytePS's `compression_params` ask for.

    Raises:
        InvalidArgumentError: parameters that BytePS does not have.
        UnsupportedError: a compressor that this version does not have.
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
