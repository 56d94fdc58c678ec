"""DistributedOptimizer: a Keras optimizer that averages gradients over all ranks."""

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
from byteps.ops import ReduceOp, check_op, check_synchronous

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

    Returns the same object. Files, configurations, copies and pickles of it are those of a plain
    optimizer. Call this before the first training step, since Keras compiles the step only once.
    All ranks must create the same optimizers in the same order: they compare variables and
    arguments at the first gradients. See docs/keras.md.

    Args:
        optimizer: any optimizer of Keras 3. All its options apply to the averaged gradients. A
            LossScaleOptimizer may be inside or outside; Model.compile creates one for the policy
            mixed_float16.
        name: accepted for the scripts of BytePS and Horovod, unused; so are device_dense and
            device_sparse.
        device_dense: see `name`.
        device_sparse: see `name`.
        compression: one of `Compression`, or a compressor of the backend's adapter.
        sparse_as_dense: make IndexedSlices dense. Otherwise every rank gets the rows of all ranks.
        op: the reduction of the gradients.
        gradient_predivide_factor: accepted for Horovod's scripts, without effect: sums of half
            precision are computed in float32 and rounded after the division.
        backward_passes_per_step: number of steps whose gradients are added up before they are sent
            and applied. Sets gradient_accumulation_steps of the Keras optimizer.
        average_aggregated_gradients: average the gradients of those steps, as Keras does. Otherwise
            they are summed, as in Horovod.
        num_groups: accepted for Horovod's scripts, unused; so is groups.
        groups: see `num_groups`.
        process_set: must be None.

    Raises:
        InvalidArgumentError: not an optimizer of Keras 3, an optimizer that is distributed already,
            or invalid arguments.
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
    object.__setattr__(inner, "_exchange", exchange)  # not tracked by Keras or TensorFlow
    object.__setattr__(inner, "_factor", factor)
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether this optimizer, or the one inside a LossScaleOptimizer, is distributed."""
    return isinstance(getattr(optimizer, "inner_optimizer", optimizer), _Distributed)


class _Distributed:
    """The base class that DistributedOptimizer adds to the optimizer's class."""

    plain: type[Any]
    gradient_accumulation_steps: int | None
    _exchange: GradientExchange
    _factor: float

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """The plain class, which Keras writes into files. `type` returns the real one."""
        return self.plain

    def __reduce__(self) -> Any:
        hidden = ("_exchange", "_factor")
        view = object.__new__(self.plain)
        view.__dict__.update((key, value) for key, value in self.__dict__.items() if key not in hidden)
        return view.__reduce__()

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Applies the gradients reduced over all ranks."""
        plain_apply = super().apply  # type: ignore[misc]
        grads = list(grads)
        if self._exchange.is_reduced or not grads:
            plain_apply(grads, trainable_variables)
            return
        if not self.gradient_accumulation_steps:
            variables = None if trainable_variables is None else list(trainable_variables)
            plain_apply(self.averaged(grads, variables), variables)
            return
        variables = self._known(grads, trainable_variables)
        grads = self._completed(grads, variables)
        due = [v for g, v in zip(grads, variables, strict=True) if g is not None and not _overwrites(v)]
        with self._exchange.accumulating(due):
            plain_apply(grads, variables)
            has_averaged = self._exchange.has_averaged_sums
        if due and not has_averaged and not self._exchange.is_eager():
            raise InternalError(
                f"DistributedOptimizer: Keras {keras.__version__} has applied accumulated gradients without calling "
                "_clip_gradients, in which byteps averages them: please report it, and accumulate gradients in your "
                "own training loop"
            )

    def averaged(self, grads: Any, trainable_variables: Any) -> list[Any]:
        """Returns the gradients reduced over all ranks."""
        variables = self._known(grads, trainable_variables)
        grads = self._completed(grads, variables)
        ordinary = [None if _overwrites(v) else g for g, v in zip(grads, variables, strict=True)]
        reduced = self._exchange.average(list(zip(ordinary, variables, strict=True)))
        return [g if r is None else r for g, r in zip(grads, reduced, strict=True)]

    def _clip_gradients(self, grads: Any) -> Any:
        """Reduces accumulated gradients, then clips.

        Keras calls it when accumulated gradients are due.
        """
        if self.gradient_accumulation_steps and not self._exchange.is_reduced:
            grads = self._exchange.average_accumulated(grads)
            if self._factor != 1:
                grads = [gradient * self._factor for gradient in grads]
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def _known(self, grads: Any, trainable_variables: Any) -> list[Any]:
        """Returns the variables of the gradients, and gives all variables to the exchange."""
        own = cast(Any, self)
        everything = list(own._trainable_variables if own.built else trainable_variables or ())
        variables = everything if trainable_variables is None else list(trainable_variables)
        if len(grads) != len(variables):
            raise InvalidArgumentError(
                f"DistributedOptimizer: {len(grads)} gradients for {len(variables)} variables: expected one for each"
            )
        if own.built:
            own._check_variables_are_known(variables)
        self._exchange.set_variables(everything)
        return variables

    def _completed(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Adds zeros for missing gradients, and reduces the values of overwritten variables."""
        grads = self._exchange.complete(list(zip(gradients, variables, strict=True)))
        new_values = [g if _overwrites(v) else None for g, v in zip(grads, variables, strict=True)]
        if all(value is None for value in new_values):
            return grads
        # Scales and maxima of float8 training: the maximum over ranks, as Keras takes it over
        # steps.
        largest = self._exchange.average(list(zip(new_values, variables, strict=True)), ReduceOp.Max)
        return [g if value is None else value for g, value in zip(grads, largest, strict=True)]


def _hyperparameters(optimizer: weakref.ref[Any]) -> list[str]:
    alive = optimizer()
    config = {} if alive is None else alive.get_config()
    return [f"{key}={config[key]!r}" for key in sorted(config) if key != "name"]


def _overwrites(variable: Any) -> bool:
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _checked(optimizer: Any) -> Any:
    """Returns the optimizer inside a LossScaleOptimizer, or `optimizer` itself."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        advice = "keras.optimizers.get(name) makes an optimizer from a name"
        if isinstance(optimizer, keras.Model):
            advice = "for a model call model.compile(DistributedOptimizer(keras.optimizers.SGD()), ...)"
        raise ArgumentTypeError(
            f"DistributedOptimizer: expected an optimizer of Keras {keras.__version__}, got "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}: {optimizer!r:.80}; {advice}"
        )
    if is_distributed(optimizer):
        raise InvalidArgumentError("DistributedOptimizer: this optimizer is distributed already: wrap it once")
    return getattr(optimizer, "inner_optimizer", optimizer)


def _check_arguments(
    op: ReduceOp, gradient_predivide_factor: float, passes: int, groups: object, num_groups: int
) -> None:
    check_op(op)
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
            f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}, which means the same: set only one"
        )
    if optimizer.built:
        raise InvalidArgumentError(
            "DistributedOptimizer: backward_passes_per_step adds variables, but the optimizer is already built: create "
            "it with gradient_accumulation_steps instead"
        )
    optimizer.gradient_accumulation_steps = passes


def _name_of(compression: Any) -> str:
    if isinstance(compression, Compression):
        return compression.name
    return compressor_name(compression)
