"""DistributedOptimizer: an optimizer whose gradients are averaged over ranks during backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import torch

from byteps.dynamic_subclass import DynamicSubclass, become_subclass
from byteps.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from byteps.ops import ReduceOp
from byteps.per_job import JobNumber
from byteps.torch.asynchronous import choose_staleness, make_asynchronous
from byteps.torch.backward_reducer import BackwardReducer
from byteps.torch.broadcast import is_model
from byteps.torch.compression import AnyCompressor, Compression
from byteps.torch.eager import eager
from byteps.torch.nested_step import closure_of, is_nested_step
from byteps.torch.ops import push_pull
from byteps.torch.options import Groups, Owner, ReducerOptions, check_passes
from byteps.torch.values import hyperparameters_of

__all__ = ["DistributedOptimizer"]

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)
Closure = Callable[[], Any]

OWNER = Owner(
    name="DistributedOptimizer",
    when_changed="call optimizer.synchronize() before clipping gradients, GradScaler.unscale_() or GradScaler.step(), "
    "and step or synchronize before zero_grad(); or use sync='auto'",
    when_repeated="set backward_passes_per_step, or step between the passes, or use sync='auto'",
    when_averaged_twice="backward_passes_per_step, or one backward pass of the sum of the losses, would communicate "
    "once",
)


def DistributedOptimizer(  # noqa: N802  (the name that BytePS and Horovod gave it)
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: AnyCompressor = Compression.none,
    backward_passes_per_step: int = 1,
    *,
    op: ReduceOp = ReduceOp.Average,
    sync: str = "auto",
    groups: Groups = None,
    num_groups: int = 0,
    bucket_bytes: int = 0,
    sparse_as_dense: bool = False,
    find_unused_parameters: bool = False,
    nan_check: bool = False,
    gradient_predivide_factor: float = 1.0,
    asynchronous: bool | None = None,
    staleness: float | None = None,
) -> OptimizerT:
    """Makes `optimizer` average the gradients of all ranks before each step, and returns it.

    It is the same object, so its state and references to it stay valid. Copies and pickles of it
    are plain optimizers. Each gradient is sent as soon as backward has computed it. All ranks must
    make the same optimizers and use them in the same order; at the first gradients they compare
    their parameters and arguments. See docs/torch-optimizer.md.

    If a parameter has no new gradient on this rank, its old one is averaged, or zeros.

    Args:
        optimizer: of any class but LBFGS. If `step` gets a closure, its loss is averaged, too, so
            that all ranks make the same decisions.
        named_parameters: `model.named_parameters()`, with the same names on all ranks. Without it,
            the name of a parameter is its position in the optimizer's groups.
        compression: one of `Compression`, for the network. Sparse gradients are not compressed.
        backward_passes_per_step: number of backward passes that add to a gradient before it is
            sent.
        op: the reduction of the ranks' gradients.
        sync: the point at which the program waits for the gradients. "backward": the end of the
            last backward pass, so that clipping and `GradScaler` see the gradients of all ranks.
            Compiled autograd hides that end: there it is the last gradient, or `step` if a
            parameter gets none, and a warning says so. "auto": as "backward", without the warning.
            "step": `step`, or `optimizer.synchronize()`, which must come before gradients are read
            or changed.
        groups: number of buckets of about the same size, or lists of parameters that share a
            bucket. For models with many small parameters.
        num_groups: Horovod's older name for a number of groups.
        bucket_bytes: instead of `groups`: consecutive parameters share a bucket of up to so many
            bytes.
        sparse_as_dense: make sparse gradients dense. Otherwise every rank gets the rows of all
            ranks.
        find_unused_parameters: ask the other ranks once a step which parameters have a gradient on
            no rank, and leave them without one, as one process does. Otherwise they get zeros.
        nan_check: look for NaN and infinities in each gradient, and raise on all ranks before the
            step.
        gradient_predivide_factor: unused; accepted for Horovod's scripts. Half-precision gradients
            are summed in float32 and rounded after the division, so that a sum cannot overflow.
        asynchronous: ranks do not wait for each other; see `byteps.torch.asynchronous`. None:
            BYTEPS_ENABLE_ASYNC.
        staleness: if asynchronous, number of steps that a rank may be ahead of the slowest one.
            None: BYTEPS_STALENESS.

    Raises:
        InvalidArgumentError: a name is given twice, a parameter has no name, other arguments are
            invalid. From the first backward or step, on all ranks: their parameters or arguments
            differ.
        UnsupportedError: LBFGS.
        NotInitializedError: `init` was not called.
    """
    _check_optimizer(optimizer)
    check_passes(backward_passes_per_step)
    options = ReducerOptions(
        OWNER,
        compression,
        op,
        sync,
        groups if groups is not None else num_groups,
        bucket_bytes,
        sparse_as_dense,
        find_unused_parameters,
        nan_check,
    )
    options.check(gradient_predivide_factor)
    names = {} if named_parameters is None else _checked_names(optimizer, named_parameters)
    label = _Label()
    bound = choose_staleness(asynchronous, staleness)
    if bound is not None:
        options.check_asynchronous()
        return make_asynchronous(optimizer, names, label, op, bound)
    hyperparameters = partial(_hyperparameters, weakref.ref(optimizer))
    reducer = BackwardReducer(names, label, backward_passes_per_step, options, hyperparameters=hyperparameters)
    reducer.add(*_with_fallback_names(enumerate(optimizer.param_groups)))
    become_subclass(optimizer, _Distributed)
    cast("_Distributed", optimizer)._reducer = reducer
    # Hooks instead of a step method: a scheduler that was made earlier has stored a wrapper of the
    # plain class's step in the instance, which would hide the method.
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    return optimizer


def _hyperparameters(optimizer: weakref.ref[torch.optim.Optimizer]) -> list[str]:
    alive = optimizer()
    return [] if alive is None else hyperparameters_of(alive)


class _Label:
    """The prefix of an optimizer's names in the current job, which no other optimizer has."""

    def __init__(self) -> None:
        self._number = JobNumber("DistributedOptimizer")

    def __call__(self) -> str:
        number = self._number.get()
        return "Gradient." if number == 0 else f"Gradient.{number}."


class _Distributed(DynamicSubclass, torch.optim.Optimizer):
    """Methods that DistributedOptimizer adds to the optimizer's class."""

    _reducer: BackwardReducer
    _skips = False  # whether step must not synchronize

    def synchronize(self) -> None:
        """Waits until all gradients are those of all ranks. Sends those that backward has not sent.

        Does nothing if no gradient has come since the last call.
        """
        self._reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, `step` does not synchronize.

        Not needed after `synchronize`, which `step` takes into account.
        """
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on, `passes` backward passes add to a gradient before it is sent."""
        check_passes(passes)
        self._reducer.set_passes(passes)

    @eager
    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """See the plain class. Raises InvalidArgumentError while gradients are in flight."""
        self._reducer.check_idle("zero_grad()")
        self._reducer.begin_step()
        super().zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See the plain class. All ranks must add the same groups."""
        super().add_param_group(param_group)
        self._reducer.add(*_with_fallback_names([(len(self.param_groups) - 1, self.param_groups[-1])]))


@eager
def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if is_nested_step(optimizer):
        return None
    reducer = cast("_Distributed", optimizer)._reducer
    if cast("_Distributed", optimizer)._skips:
        reducer.check_idle("step() within skip_synchronize()")
        return None
    closure = closure_of(args, kwargs)
    if closure is None:
        reducer.synchronize()
        return None
    synchronized_closure = _synchronized(closure, reducer)
    if len(args) > 1:
        return (args[0], synchronized_closure, *args[2:]), kwargs
    return args, {**kwargs, "closure": synchronized_closure}


@eager
def _after_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not is_nested_step(optimizer):
        cast("_Distributed", optimizer)._reducer.begin_step()


def _synchronized(closure: Closure, reducer: BackwardReducer) -> Closure:
    def synchronized_closure() -> Any:
        loss = closure()
        reducer.synchronize()
        if isinstance(loss, torch.Tensor):
            return push_pull(loss.detach())
        return loss if loss is None else push_pull(torch.tensor(float(loss), dtype=torch.float64)).item()

    return synchronized_closure


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentTypeError(
            f"DistributedOptimizer: expected an optimizer of torch, got {type(optimizer).__name__}: "
            "DistributedOptimizer(optimizer, named_parameters=model.named_parameters())"
            + ("; DistributedDataParallel(model) takes a model" if is_model(optimizer) else "")
        )
    if isinstance(optimizer, DynamicSubclass):
        raise InvalidArgumentError(
            "DistributedOptimizer: the optimizer is distributed already, or has a CrossBarrier: use one of them"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError(
            "DistributedOptimizer: the line search of LBFGS decides how often it evaluates its closure, and a rank "
            "whose rounding differs in the last bit may evaluate it once more, and wait in vain. Use another "
            "optimizer; or plain LBFGS on every rank, with a closure that averages the loss and each .grad by "
            "byteps.torch.push_pull, on machines of one kind"
        )


def _with_fallback_names(
    groups: Iterable[tuple[int, dict[str, Any]]],
) -> tuple[list[torch.Tensor], list[str]]:
    """Returns the parameters of the optimizer's groups, and names made of their positions."""
    parameters: dict[torch.Tensor, str] = {}
    for number, group in groups:
        for index, parameter in enumerate(group["params"]):
            parameters[parameter] = f"group{number}.{index}"
    return list(parameters), list(parameters.values())


def _checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]]
) -> dict[torch.Tensor, str]:
    names: dict[torch.Tensor, str] = {}
    seen: set[str] = set()
    if is_model(named_parameters):
        raise ArgumentTypeError("named_parameters: a model given: pass model.named_parameters()")
    for item in named_parameters:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)):
            raise InvalidArgumentError(
                f"named_parameters: expected (name, parameter) as model.named_parameters() gives, got {item!r:.80}"
            )
        name, parameter = item
        if name in seen:
            raise InvalidArgumentError(f"named_parameters: the name '{name}' is given twice; put a prefix before it")
        seen.add(name)
        names.setdefault(parameter, name)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    nameless = sum(parameter not in names for parameter in parameters)
    if nameless:
        raise InvalidArgumentError(
            f"named_parameters: {nameless} of the optimizer's {len(parameters)} parameters have no name in it: pass "
            "those of the whole model"
        )
    return names
