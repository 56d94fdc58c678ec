"""DistributedOptimizer: a Keras optimizer whose gradients are those of all ranks."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import keras

from byteps.compression import compressor_name
from byteps.errors import ArgumentTypeError, InternalError, InvalidArgumentError, UnsupportedError
from byteps.keras.backend import OptimizerOptions, current_backend
from byteps.keras.compression import Compression
from byteps.keras.exchange import GradientExchange
from byteps.keras.patch_keras import patch_keras
from byteps.ops import ReduceOp, check_synchronous

__all__ = ["DistributedOptimizer", "is_distributed"]

OptimizerT = TypeVar("OptimizerT")


def DistributedOptimizer(  # noqa: N802  (the name that BytePS and Horovod gave it)
    optimizer: OptimizerT,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    *,
    op: ReduceOp = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: None = None,
) -> OptimizerT:
    """Makes `optimizer` average the gradients of all ranks before each update, and returns it.

    It is the same object; what Keras makes of it (files, configurations, copies, pickles) is as of a plain optimizer.
    Call it before the first training step, since Keras keeps the steps that it has compiled. All ranks make the same
    optimizers in the same order: they compare their variables and arguments at the first gradients. docs/keras.md says
    more.

    Args:
        optimizer: any of Keras 3, with all its options. They see averaged gradients. A LossScaleOptimizer may be inside
            or outside; Model.compile makes one for the policy mixed_float16.
        name: accepted for the scripts of BytePS and Horovod, unused; so are device_dense and device_sparse.
        device_dense: see `name`.
        device_sparse: see `name`.
        compression: one of `Compression`, or a compressor of the backend's adapter, for the way over the network.
        sparse_as_dense: make IndexedSlices dense. Otherwise every rank gets the rows of all ranks.
        op: what becomes of the ranks' gradients.
        gradient_predivide_factor: accepted for Horovod's scripts. Sums of half precision are made in float32 and
            rounded after the division, so there is nothing that it could save from overflow.
        backward_passes_per_step: how many steps add to the gradients before one of them sends and applies them:
            Horovod's name for gradient_accumulation_steps of Keras's optimizers, which this sets.
        average_aggregated_gradients: whether the gradients of those steps are averaged, which Keras does; else they are
            summed, as Horovod does.
        num_groups: accepted for Horovod's scripts, unused, and so is `groups`: gradients need not be fused to be fast.
        groups: see `num_groups`.
        process_set: refused, unless None.

    Raises:
        InvalidArgumentError: not an optimizer of Keras 3, one that is distributed already, arguments that make no
            sense.
        UnsupportedError: the jax backend; process_set; asynchronous training.
        NotInitializedError: before `init`.
    """
    inner = _checked(optimizer)
    _check_arguments(op, gradient_predivide_factor, backward_passes_per_step, groups, num_groups)
    if process_set is not None:
        raise UnsupportedError("DistributedOptimizer: process_set is not supported: all ranks of the job take part")
    check_synchronous("DistributedOptimizer")
    backend = current_backend()
    factor = 1.0
    if backward_passes_per_step > 1:
        _accumulate(inner, backward_passes_per_step)
        factor = 1.0 if average_aggregated_gradients else float(backward_passes_per_step)
    description = (
        f"{type(inner).__name__}, op={op.name}, compression={_name_of(compression)}, "
        f"sparse_as_dense={sparse_as_dense}, gradient_accumulation_steps={inner.gradient_accumulation_steps}"
    )
    options = OptimizerOptions(compression, op, sparse_as_dense)
    patch_keras(_Distributed)
    plain = type(inner)
    members = {"__module__": plain.__module__, "__doc__": plain.__doc__, "plain": plain}
    object.__setattr__(inner, "__class__", type(plain.__name__, (_Distributed, plain), members))
    exchange = GradientExchange(backend, options, description)
    exchange.hyperparameters = functools.partial(_hyperparameters, weakref.ref(inner))
    object.__setattr__(inner, "_exchange", exchange)  # neither Keras nor TensorFlow is to track it
    object.__setattr__(inner, "_factor", factor)
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether DistributedOptimizer has had this optimizer, or the one inside it."""
    return isinstance(getattr(optimizer, "inner_optimizer", optimizer), _Distributed)


class _Distributed:
    """What DistributedOptimizer adds to the optimizer's class."""

    plain: type[Any]
    gradient_accumulation_steps: int | None
    _exchange: GradientExchange
    _factor: float

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """The plain class, for Keras writes it into files. `type` and `isinstance` tell the truth."""
        return self.plain

    def __reduce__(self) -> Any:
        hidden = ("_exchange", "_factor")
        view = object.__new__(self.plain)
        view.__dict__.update((key, value) for key, value in self.__dict__.items() if key not in hidden)
        return view.__reduce__()

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As in the plain class, with the gradients of all ranks."""
        plain_apply = super().apply  # type: ignore[misc]
        grads = list(grads)
        if self._exchange.is_done or not grads:
            plain_apply(grads, trainable_variables)
            return
        if not self.gradient_accumulation_steps:
            variables = None if trainable_variables is None else list(trainable_variables)
            plain_apply(self.averaged(grads, variables), variables)
            return
        variables = self._known(grads, trainable_variables)
        grads = self._completed(grads, variables)
        due = [v for g, v in zip(grads, variables, strict=True) if g is not None and not _overwrites(v)]
        self._exchange.due = due
        before = self._exchange.count
        plain_apply(grads, variables)
        if due and self._exchange.count == before and not self._exchange.is_eager():
            raise InternalError(
                f"DistributedOptimizer: Keras {keras.__version__} has applied accumulated gradients without clipping "
                "them, where byteps averages them: please report it, and accumulate in a training loop of your own"
            )

    def averaged(self, grads: Any, trainable_variables: Any) -> list[Any]:
        """The gradients reduced over all ranks."""
        variables = self._known(grads, trainable_variables)
        grads = self._completed(grads, variables)
        ordinary = [None if _overwrites(v) else g for g, v in zip(grads, variables, strict=True)]
        reduced = self._exchange.average(list(zip(ordinary, variables, strict=True)))
        return [g if r is None else r for g, r in zip(grads, reduced, strict=True)]

    def _clip_gradients(self, grads: Any) -> Any:
        """As in the plain class; accumulated gradients come here when they are due, and none before."""
        if self.gradient_accumulation_steps and not self._exchange.is_done:
            grads = self._exchange.average(list(zip(grads, self._exchange.due, strict=True)))
            if self._factor != 1:
                grads = [gradient * self._factor for gradient in grads]
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _known(self, grads: Any, trainable_variables: Any) -> list[Any]:
        """The variables that the gradients are of; the exchange knows all of the optimizer's afterwards."""
        own = cast(Any, self)
        everything = list(own._trainable_variables if own.built else trainable_variables or ())
        variables = everything if trainable_variables is None else list(trainable_variables)
        if len(grads) != len(variables):
            raise InvalidArgumentError(
                f"DistributedOptimizer: {len(grads)} gradients for {len(variables)} variables: expected one for each"
            )
        if own.built:
            own._check_variables_are_known(variables)
        self._exchange.know(everything)
        return variables

    def _completed(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """With what other ranks have and this one lacks; new values of variables, which are no gradients, exchanged."""
        grads = self._exchange.complete(list(zip(gradients, variables, strict=True)))
        new_values = [g if _overwrites(v) else None for g, v in zip(grads, variables, strict=True)]
        if all(value is None for value in new_values):
            return grads
        # Scales and maxima of float8: what Keras makes of those of several steps it makes of those of several ranks.
        largest = self._exchange.average(list(zip(new_values, variables, strict=True)), ReduceOp.Max)
        return [g if value is None else value for g, value in zip(grads, largest, strict=True)]


def _hyperparameters(optimizer: weakref.ref[Any]) -> list[str]:
    alive = optimizer()
    config = {} if alive is None else alive.get_config()
    return [f"{key}={config[key]!r}" for key in sorted(config) if key != "name"]


def _overwrites(variable: Any) -> bool:
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _checked(optimizer: Any) -> Any:
    """The optimizer whose gradients are to be averaged: that inside a LossScaleOptimizer, or itself."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        advice = "a name becomes one by keras.optimizers.get(name)"
        if isinstance(optimizer, keras.Model):
            advice = "a model gets one by model.compile(DistributedOptimizer(keras.optimizers.SGD()), ...)"
        raise ArgumentTypeError(
            f"DistributedOptimizer: expected an optimizer of Keras {keras.__version__}, got "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}: {optimizer!r:.80}; {advice}"
        )
    if is_distributed(optimizer):
        raise InvalidArgumentError("DistributedOptimizer: this optimizer is a distributed one already: wrap it once")
    return getattr(optimizer, "inner_optimizer", optimizer)


def _check_arguments(
    op: ReduceOp, gradient_predivide_factor: float, passes: int, groups: object, num_groups: int
) -> None:
    if not isinstance(op, ReduceOp):
        raise InvalidArgumentError(f"op is {op!r}: expected Average, Sum, Min, Max or Product of this package")
    factor = gradient_predivide_factor
    if not (math.isfinite(factor) and factor > 0):
        raise InvalidArgumentError(f"gradient_predivide_factor is {factor!r}: expected a positive number")
    if factor != 1 and op is not ReduceOp.Average:
        raise InvalidArgumentError(f"gradient_predivide_factor needs op=Average, got {op.name}")
    if not isinstance(passes, int) or passes < 1:
        raise InvalidArgumentError(f"backward_passes_per_step is {passes!r}: expected 1 or more")
    if not isinstance(num_groups, int) or num_groups < 0 or (isinstance(groups, int) and groups < 0):
        raise InvalidArgumentError(f"num_groups is {num_groups!r} and groups {groups!r:.80}: expected 0 or more")


def _accumulate(optimizer: Any, passes: int) -> None:
    if optimizer.gradient_accumulation_steps:
        raise InvalidArgumentError(
            f"DistributedOptimizer: backward_passes_per_step is {passes}, and the optimizer has "
            f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}, which is the same thing: give one"
        )
    if optimizer.built:
        raise InvalidArgumentError(
            "DistributedOptimizer: backward_passes_per_step needs an optimizer that is not built yet, since it adds "
            "variables: make it with gradient_accumulation_steps instead"
        )
    optimizer.gradient_accumulation_steps = passes


def _name_of(compression: Any) -> str:
    if isinstance(compression, Compression):
        return compression.name
    return compressor_name(compression)
