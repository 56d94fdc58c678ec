"""CrossBarrier: the next forward pass begins while gradients are still in flight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch import nn

from byteps.dynamic_subclass import DynamicSubclass, become_subclass
from byteps.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from byteps.per_job import JobNumber
from byteps.runtime import init, local_rank, local_size, rank, shutdown, size
from byteps.torch.asynchronous import warn_if_asynchronous
from byteps.torch.broadcast import broadcast_optimizer_state, broadcast_parameters
from byteps.torch.compression import AnyCompressor, Compression
from byteps.torch.ddp import DistributedDataParallel
from byteps.torch.eager import eager
from byteps.torch.forward_hooks import ForwardHooks
from byteps.torch.lazy_step import LazyStep
from byteps.torch.nested_step import StepView, closure_of, step_view
from byteps.torch.ops import byteps_push_pull, poll, synchronize
from byteps.torch.options import Owner, ReducerOptions, bytes_of_megabytes, check_passes

# BytePS's scripts import this module in place of byteps.torch.
__all__ = [
    "Compression",
    "CrossBarrier",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]

Tensor = torch.Tensor
Named = tuple[str, Tensor]
OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

OWNER = Owner(
    name="CrossBarrier",
    when_changed="call optimizer.synchronize() before clipping gradients, GradScaler.unscale_() or GradScaler.step(); "
    "that waits for all of them, so DistributedOptimizer does as well for such loops. Between step and forward, "
    "gradients can be dropped by zero_grad() only",
    when_repeated="set backward_passes_per_step, or step between the passes",
)


def CrossBarrier(  # noqa: N802  (the name that BytePS gave it)
    model: nn.Module,
    optimizer: OptimizerT,
    named_parameters: Iterable[Named] | None = None,
    compression: AnyCompressor = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
    *,
    bucket_cap_mb: float = 1.0,
    find_unused_parameters: bool = False,
    per_parameter: bool = False,
) -> OptimizerT:
    """Makes `optimizer` average the gradients of all ranks without waiting for them, and returns
    it.

    `step` returns at once. Each module's parameters change just before the module's next forward,
    when their gradients have arrived; so the network is busy during forward, too. All parameters
    get the same bits as with DistributedOptimizer: the optimizer's own code changes them, with the
    learning rate at the time of `step`.

    Optimizer and model stay the same objects; copies and pickles of them are plain ones. Until a
    module's next forward its parameters are those of the step before. Code that reads them by other
    means has to call `optimizer.flush()` first. `model.state_dict`, `load_state_dict`,
    `parameters`, `train`, `eval`, copies, pickles and the optimizer's methods call it themselves.

    Code that needs all gradients before the step, such as clipping by their norm and GradScaler,
    has to call `optimizer.synchronize()` first, which waits for them. It is then as fast as
    DistributedOptimizer.

    Args:
        model: the model whose forward is called in training, without wrappers and not compiled yet.
        optimizer: of the model's parameters; of any class of torch.optim but LBFGS. It gets sparse
            gradients as dense ones.
        named_parameters: see DistributedOptimizer; `model.named_parameters()` by default. Best in
            the order of the forward pass.
        compression: one of `Compression`, for the network.
        backward_passes_per_step: number of backward passes that add to a gradient before it is
            sent.
        num_steps: number of steps of the program: the last one does not wait for a forward pass.
        bucket_cap_mb: size of the buckets in which small parameters are sent and changed together,
            in MiB.
        find_unused_parameters: the optimizer skips parameters that have a gradient on no rank.
            Otherwise their gradient counts as zero, unless no rank has ever had one.
        per_parameter: the optimizer's class is not of torch.optim, but changes each parameter by
            its own gradient and state only, whatever other parameters are in the same call of step.

    Raises:
        InvalidArgumentError: invalid arguments. From the first backward or step, on all ranks:
            their parameters differ.
        UnsupportedError: an optimizer that needs all gradients at once.
        NotInitializedError: before `init`.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper runs the model's hooks
    plain = type(optimizer)
    _check(model, optimizer, per_parameter, backward_passes_per_step)
    warn_if_asynchronous(OWNER.name)
    names = _names(model, optimizer, named_parameters)
    options = ReducerOptions(
        OWNER,
        compression,
        bucket_bytes=bytes_of_megabytes(OWNER, bucket_cap_mb),
        sparse_as_dense=True,
        find_unused_parameters=find_unused_parameters,
    )
    number = JobNumber("CrossBarrier")
    # Without hooks, which only the program's calls run.
    step = getattr(plain.step, "__wrapped__", plain.step)
    lazy = LazyStep(optimizer, step, names, lambda: f"CrossBarrier.{number.get()}.", backward_passes_per_step, options)
    lazy.add(*_new_ones(names, optimizer, lazy))
    hooks = ForwardHooks(model, lazy)

    become_subclass(optimizer, _CrossBarrier)
    wrapped = cast("_CrossBarrier", optimizer)
    wrapped._lazy, wrapped._barrier_hooks, wrapped._names, wrapped._steps_left = lazy, hooks, names, num_steps
    # Hooks instead of a step method: a scheduler that was made earlier has stored a wrapper of the
    # plain class's step in the instance, which would hide the method.
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    become_subclass(model, _CrossBarrierModel)
    cast("_CrossBarrierModel", model)._barrier_hooks, cast("_CrossBarrierModel", model)._lazy = hooks, lazy
    return optimizer


class _CrossBarrier(DynamicSubclass, torch.optim.Optimizer):
    """Methods that CrossBarrier adds to the optimizer's class."""

    _lazy: LazyStep
    _barrier_hooks: ForwardHooks
    _names: dict[Tensor, str]
    _steps_left: int

    def flush(self) -> None:
        """Waits until the last step is complete, for all parameters."""
        self._lazy.flush()

    def synchronize(self) -> None:
        """Waits until all gradients are those of all ranks. The next `step` is made at once."""
        self._lazy.synchronize()

    @eager
    def zero_grad(self, set_to_none: bool = True) -> None:
        """See the plain class. Raises InvalidArgumentError between backward and step."""
        self._lazy.check_idle("zero_grad()")
        self._lazy.detach_gradients(set_to_none)
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """See the plain class. Calls `flush` before."""
        self.flush()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See the plain class. Calls `flush` before."""
        self.flush()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See the plain class. All ranks must add the same groups, of parameters of the model."""
        self.flush()
        super().add_param_group(param_group)
        new = _new_ones(self._names, self, self._lazy)
        self._lazy.add(*new)
        for parameter in new[0]:
            self._barrier_hooks.add_to_model_hook(parameter)

    def __getstate__(self) -> dict[str, Any]:
        self.flush()
        return super().__getstate__()


class _CrossBarrierModel(DynamicSubclass, nn.Module):
    """Methods that CrossBarrier adds to the model's class."""

    _barrier_hooks: ForwardHooks
    _lazy: LazyStep

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """See the plain class. The parameters are up to date."""
        self._flush()
        return super().named_parameters(*args, **kwargs)

    def train(self, mode: bool = True) -> Any:
        """See the plain class. The last step is complete before."""
        self._flush()
        return super().train(mode)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See the plain class. Gradients that the last step still needs stay."""
        self._lazy.detach_gradients(set_to_none)
        for parameter in self._parameters_as_they_are():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()

    def __getstate__(self) -> dict[str, Any]:
        self._lazy.flush()
        return {key: value for key, value in self.__dict__.items() if key not in ("_barrier_hooks", "_lazy")}

    @eager
    def _flush(self) -> None:
        if (
            not self._barrier_hooks.in_forward
        ):  # hooks update them there, and models ask their parameters for their device
            self._lazy.flush()

    def _parameters_as_they_are(self) -> Iterator[nn.Parameter]:
        return (parameter for _, parameter in super().named_parameters())


@eager
def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    wrapped = cast("_CrossBarrier", optimizer)
    # A step that calls its base class's.
    if isinstance(wrapped, StepView) or wrapped._lazy.is_applying:
        return None
    if closure_of(args, kwargs) is not None:
        raise InvalidArgumentError(
            "CrossBarrier: step(closure) needs all gradients at once: call backward before step, or use "
            "DistributedOptimizer"
        )
    wrapped._barrier_hooks.stop_learning()
    if size() > 1 and not wrapped._lazy.is_synchronized and getattr(optimizer, "found_inf", None) is not None:
        raise InvalidArgumentError(
            "CrossBarrier: GradScaler looks for infinities in gradients that are in flight: call "
            "optimizer.synchronize() before scaler.step(), or use DistributedOptimizer"
        )
    groups = optimizer.param_groups
    if wrapped._lazy.begin():
        groups = [{**group, "params": []} for group in groups]  # nothing to do yet
    return (step_view(optimizer, groups), *args[1:]), kwargs


@eager
def _after_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    wrapped = cast("_CrossBarrier", optimizer)
    if isinstance(wrapped, StepView) or wrapped._lazy.is_applying:
        return
    wrapped._lazy.begin_step()
    wrapped._steps_left -= 1
    if wrapped._steps_left <= 0:
        wrapped.flush()


def _new_ones(
    names: dict[Tensor, str], optimizer: torch.optim.Optimizer, lazy: LazyStep
) -> tuple[list[Tensor], list[str]]:
    """Returns the optimizer's parameters that `lazy` does not have, and their names."""
    own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    new = [parameter for parameter in names if parameter in own and lazy.bucket_of(parameter) is None]
    return new, [names[parameter] for parameter in new]


def _check(model: nn.Module, optimizer: torch.optim.Optimizer, per_parameter: bool, passes: int) -> None:
    plain = type(optimizer)
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentTypeError(
            f"CrossBarrier: expected a model and its optimizer, got {type(model).__name__} and {plain.__name__}"
        )
    if isinstance(optimizer, DynamicSubclass):
        raise InvalidArgumentError(
            "CrossBarrier: the optimizer is distributed already, or has a CrossBarrier: use one of them"
        )
    if isinstance(model, DistributedDataParallel | nn.parallel.DistributedDataParallel):
        raise InvalidArgumentError("CrossBarrier: the model averages its gradients itself: pass model.module")
    if isinstance(model, _CrossBarrierModel):
        raise InvalidArgumentError(
            "CrossBarrier: the model has a CrossBarrier already: one optimizer must have all its parameters"
        )
    check_passes(passes)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError("CrossBarrier: LBFGS needs all gradients at once: use DistributedOptimizer")
    if not per_parameter and not plain.step.__module__.startswith("torch.optim."):
        raise UnsupportedError(
            f"CrossBarrier: {plain.__name__} is not of torch.optim: if it changes each parameter by its own gradient "
            "and state only, pass per_parameter=True; otherwise use DistributedOptimizer"
        )


def _names(model: nn.Module, optimizer: torch.optim.Optimizer, named: Iterable[Named] | None) -> dict[Tensor, str]:
    """Returns the names of the model's parameters, in the order of `named`."""
    of_model = dict.fromkeys(model.parameters())
    names: dict[Tensor, str] = {}
    for name, parameter in model.named_parameters() if named is None else named:
        if parameter in of_model:
            names.setdefault(parameter, name)
    if len(set(names.values())) != len(names):
        raise InvalidArgumentError("CrossBarrier: named_parameters gives a name twice")
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(parameter not in names for parameter in own)
    if foreign:
        raise InvalidArgumentError(
            f"CrossBarrier: {foreign} of the optimizer's {len(own)} parameters are not the model's, or have no name in "
            "named_parameters, so no forward pass could wait for them"
        )
    return names
