"""The kvstore 'dist_byteps', for gluon's Trainer and for Module as they are.

As in MXNet's own distributed kvstores, values of ranks are added up, not averaged: `Module` divides
by the batch size of all ranks, and users of a `Trainer` pass a batch size. The Trainer or Module
has the optimizer. In asynchronous training the kvstore has it, as in MXNet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import mxnet as mx
import mxnet.gluon.trainer
import mxnet.model
import mxnet.module.module
from mxnet.kvstore import KVStoreBase

from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.mxnet.broadcast import broadcast_arrays
from byteps.mxnet.exchange import GradientExchange
from byteps.mxnet.optimizer import DistributedOptimizer
from byteps.mxnet.tensor import copy_to_all, sum_of_devices
from byteps.mxnet.trainer import compressor_of
from byteps.ops import ReduceOp
from byteps.runtime import current_job, is_initialized

__all__ = ["BytepsStore", "install"]

NDArray: TypeAlias = mx.nd.NDArray
Key: TypeAlias = int | str

NAMES = ("dist_byteps", "byteps")  # the second one is the name in MXNet 2
_LOCAL = ("local", "device", "nccl")  # parts of the names of MXNet's own stores of one machine


class BytepsStore(KVStoreBase):
    """A kvstore that sums over all ranks.

    All methods return at once; the engine does the work later.

    A key is a number or string, the same on all ranks for arrays that belong together; or a list of
    keys, with a list of values. A value or `out` is an array, or a list with an array for each
    device of this rank. All ranks must create the same stores in the same order.
    """

    def __init__(self) -> None:
        self._is_asynchronous = current_job().config.asynchronous
        self._size = current_job().size
        self._exchange = GradientExchange(ReduceOp.Sum)
        self._values: dict[Key, NDArray] = {}  # values of `init` and `push`
        self._updater: mx.optimizer.Updater | None = None
        self._weights: dict[Key, list[NDArray]] = {}  # copies; the first one is current
        self._exchange.check_agreement("kvstore 'dist_byteps'")

    @property
    def type(self) -> str:
        """Contains 'dist', and '_sync' or 'async', for which Trainer and Module look."""
        return "dist_async_byteps" if self._is_asynchronous else "dist_sync_byteps"

    @property
    def rank(self) -> int:
        return current_job().rank

    @property
    def num_workers(self) -> int:
        return current_job().size

    def is_capable(self, capability: str) -> bool:
        """Whether the store supports `capability`, which must be 'optimizer'."""
        if capability.lower() != self.OPTIMIZER:
            raise InvalidArgumentError(f"kvstore 'dist_byteps': capability {capability!r}: expected 'optimizer'")
        return self._is_asynchronous

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """{'fp16': True} or {'type': 'fp16'} sends values in half precision."""
        params = dict(compression_params)
        if params.get("type") == "fp16":
            params = {"fp16": True}
        elif "type" in params:
            raise UnsupportedError(f"set_gradient_compression: 'type' is {params['type']!r}: expected 'fp16'")
        self._exchange.compression = compressor_of(params)
        self._exchange.check_agreement("kvstore 'dist_byteps': set_gradient_compression")

    def barrier(self) -> None:
        """Blocks until all ranks have called it and finished all earlier operations."""
        mx.nd.waitall()
        current_job().node.barrier()

    _barrier = barrier  # the name in MXNet's own stores

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Writes rank 0's value to `out`."""
        self._join()
        for each, values, outs in _by_key(key, value, out):
            targets = _listed(outs)
            copy_to_all(values if isinstance(values, mx.nd.NDArray) else values[0], targets)
            broadcast_arrays(targets, each, 0, self._exchange.prefix)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Writes the sum of all ranks' values to `out`, by default `value`.

        If the store has an optimizer, values are gradients, and `out` are the weights to update.
        """
        for each, values, outs in _by_key(key, value, value if out is None else out):
            if self._updater is not None:
                self._update(each, _listed(values), _listed(outs))
                continue
            total = self._sum(each, _listed(values), priority, in_place=out is None)
            copy_to_all(total, _listed(outs))

    def init(self, key: Any, value: Any) -> None:
        """Stores rank 0's value, for `push` and `pull`."""
        self._join()
        for each, values, _ in _by_key(key, value, value):
            self._values[each] = _listed(values)[0].copy()
            broadcast_arrays([self._values[each]], each, 0, self._exchange.prefix)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Replaces the stored value by the sum of all ranks' values, or updates it."""
        for each, values, _ in _by_key(key, value, value):
            if self._updater is not None:
                self._update(each, _listed(values), [self._stored(each)])
            else:
                self._values[each] = self._sum(each, _listed(values), priority, in_place=False)

    def pull(self, key: Any, out: Any, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Writes the stored value to `out`."""
        for each, outs, _ in _by_key(key, out, out):
            copy_to_all(self._stored(each), _listed(outs))

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        raise UnsupportedError("kvstore 'dist_byteps': weights in sparse rows are not supported: use dense ones")

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """Makes `pushpull` and `push` update weights. For asynchronous training only.

        Raises:
            InvalidArgumentError: training is synchronous.
        """
        if not self._is_asynchronous:
            raise InvalidArgumentError(
                "kvstore 'dist_byteps': in synchronous training the Trainer or Module has the optimizer: leave "
                "update_on_kvstore out, or set BYTEPS_ENABLE_ASYNC=1"
            )
        self._updater = mx.optimizer.get_updater(DistributedOptimizer(optimizer))

    def settle(self) -> None:
        """Gives all ranks the same weights, if training is asynchronous.

        Blocks until all ranks have called it.
        """
        if self._updater is not None:
            self._updater.optimizer.settle()
            for weights in self._weights.values():
                copy_to_all(weights[0], weights)

    def check_names(self, names: Sequence[str], *, exactly: bool) -> None:
        """Compares the parameter names of a Trainer or Module over all ranks."""
        self._exchange.check_names("kvstore 'dist_byteps'", names, exactly=exactly)

    def give_weights(self, key: Key, value: NDArray, weights: Sequence[NDArray]) -> None:
        """Replaces a Module's parameter, `value` and its copies `weights`, by rank 0's."""
        self._weights[key] = [*weights, value]
        self.broadcast(key, value, out=self._weights[key])

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        with open(fname, "wb") as file:  # noqa: PTH123  (as MXNet opens what it is given)
            file.write(self._its_updater().get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        with open(fname, "rb") as file:  # noqa: PTH123
            self._its_updater().set_states(file.read())

    def _sum(self, key: Key, values: Sequence[NDArray], priority: int, *, in_place: bool) -> NDArray:
        self._join()
        total = sum_of_devices(values)
        if total is values[0] and not in_place:
            total = total.copy()
        self._exchange.reduce(key, [total], priority)
        return total

    def _update(self, key: Key, gradients: Sequence[NDArray], weights: Sequence[NDArray]) -> None:
        self._join()
        self._weights.setdefault(key, list(weights))
        self._its_updater()(key, sum_of_devices(gradients), weights[0])
        copy_to_all(weights[0], weights)

    def _stored(self, key: Key) -> NDArray:
        if key not in self._values:
            raise InvalidArgumentError(f"kvstore 'dist_byteps': key {key!r} has no value: call init({key!r}, value)")
        return self._values[key]

    def _join(self) -> None:
        """At the first use in a job: compares options.

        Raises an error if some ranks lack the store.
        """
        if self._exchange.is_of_this_job:
            return
        if current_job().size > self._size:
            raise InvalidArgumentError(
                f"kvstore 'dist_byteps': it was created in a job of {self._size} ranks, and some of the now "
                f"{current_job().size} ranks do not have it: after resume() create the store, and the Trainer or "
                "Module that uses it, on all ranks; or use DistributedTrainer"
            )
        self._size = current_job().size
        self._exchange.check_agreement("kvstore 'dist_byteps'")

    def _its_updater(self) -> mx.optimizer.Updater:
        if self._updater is None:
            raise InvalidArgumentError("kvstore 'dist_byteps': it has no optimizer: the Trainer has its states")
        return self._updater


def _by_key(key: Any, value: Any, out: Any) -> Sequence[tuple[Key, Any, Any]]:
    if isinstance(key, (list, tuple)):
        return list(zip(key, value, out, strict=True))
    return [(key, value, out)]


def _listed(values: Any) -> Sequence[NDArray]:
    return values if isinstance(values, (list, tuple)) else [values]


def install() -> None:
    """Registers the store in MXNet, and patches the functions that create and initialize stores.

    Without the patches, MXNet takes a name without 'dist' for a store of one machine, and creates
    none for a single device: after a spelling mistake every rank would train alone. For other names
    with 'dist' it would wait forever for its own servers. And it does not initialize the weights of
    Modules from a store without an optimizer.
    """
    for name in NAMES:
        KVStoreBase.kv_registry[name] = BytepsStore
    mx.kvstore.create = mx.kvstore.base.create = _checking(mx.kvstore.create)
    for module in (mx.model, mx.gluon.trainer, mx.module.module):
        module._create_kvstore = _creating(module._create_kvstore, keys_are_names=module is not mx.gluon.trainer)
    for module in (mx.model, mx.module.module):
        module._initialize_kvstore = _initializing(module._initialize_kvstore)


def _checking(create: Callable[[str], Any]) -> Callable[[str], Any]:
    @functools.wraps(create)
    def create_checked(name: str = "local") -> Any:
        _check_name(name)
        return create(name)

    return create_checked


def _creating(create: Callable[..., Any], *, keys_are_names: bool) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_kvstore(kvstore: Any, num_device: int, arg_params: Any) -> Any:
        if isinstance(kvstore, str):
            _check_name(kvstore)
            if kvstore.lower() in NAMES:
                kvstore = mx.kv.create(kvstore)
        if isinstance(kvstore, BytepsStore):
            kvstore.check_names(list(arg_params), exactly=keys_are_names)
        return create(kvstore, num_device, arg_params)

    return create_kvstore


def _check_name(name: Any) -> None:
    """Raises InvalidArgumentError if there is no such store, or if it needs servers of MXNet."""
    if not isinstance(name, str) or name.lower() in KVStoreBase.kv_registry:
        return
    if "dist" in name.lower() and is_initialized():
        raise InvalidArgumentError(
            f"kvstore '{name}': MXNet's own distributed kvstores need servers of MXNet, which a job of byteps does "
            "not have: use 'dist_byteps'"
        )
    if not any(part in name.lower() for part in ("dist", *_LOCAL)):
        raise InvalidArgumentError(
            f"kvstore '{name}' is unknown, and MXNet would train without a kvstore: expected 'dist_byteps', 'local', "
            "'device' or another store of MXNet"
        )


def _initializing(initialize: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(initialize)
    def initialize_kvstore(
        kvstore: KVStoreBase, param_arrays: Any, arg_params: Any, param_names: Any, update_on_kvstore: bool
    ) -> None:
        if not isinstance(kvstore, BytepsStore):
            initialize(kvstore, param_arrays, arg_params, param_names, update_on_kvstore)
            return
        for name, arrays in zip(param_names, param_arrays, strict=True):
            kvstore.give_weights(name, arg_params[name], arrays)

    return initialize_kvstore
