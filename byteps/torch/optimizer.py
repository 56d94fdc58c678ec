"""DistributedOptimizer: gradients are averaged over the ranks while backward still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar, cast

import torch

from byteps.errors import InvalidArgumentError
from byteps.ops import ReduceOp
from byteps.torch.compression import Compression, Compressor
from byteps.torch.eager import eager
from byteps.torch.exchange import Exchange
from byteps.torch.ops import push_pull

__all__ = ["DistributedOptimizer"]

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)
Closure = Callable[[], Any]

_wrapped_so_far = count()


def DistributedOptimizer(  # noqa: N802  (the name that BytePS and Horovod gave it)
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    *,
    op: ReduceOp = ReduceOp.Average,
) -> OptimizerT:
    """Makes `optimizer` average the gradients of all ranks before each step, and returns it.

    It is the same object, so its state and the schedulers that hold it stay valid; copies and pickles of it are
    ordinary optimizers. Each gradient is sent as soon as backward has it, and `step` waits for all of them. To read or
    change gradients before the step (clipping, `GradScaler.unscale_`), call `optimizer.synchronize()` first.

    A parameter that got no gradient on this rank takes part with its old gradient, or with zeros.

    Args:
        optimizer: of any class. If `step` gets a closure, its loss is averaged too, so that all ranks decide alike.
        named_parameters: `model.named_parameters()`; the same names on all ranks, which must also wrap their optimizers
            in the same order. What comes first is needed first by
            the next forward pass, so its gradient goes first. Without it, parameters are known by their places in the
            optimizer's groups.
        compression: one of `Compression`, for the way over the network.
        backward_passes_per_step: how many backward passes add to a gradient before it is sent.
        op: what becomes of the ranks' gradients.

    Raises:
        InvalidArgumentError: a name given twice, a parameter without a name, other arguments that make no sense.
        NotInitializedError: before `init`.
    """
    if isinstance(optimizer, _Distributed):
        raise InvalidArgumentError("DistributedOptimizer: this optimizer is a distributed one already")
    _check_passes(backward_passes_per_step)
    names = {} if named_parameters is None else _checked_names(optimizer, named_parameters)
    number = next(_wrapped_so_far)  # two models may have parameters of the same name
    prefix = "Gradient." if number == 0 else f"Gradient.{number}."
    exchange = Exchange(names, prefix, compression, backward_passes_per_step, op)
    for index, group in enumerate(optimizer.param_groups):
        exchange.add_group(group["params"], index)
    plain = type(optimizer)
    optimizer.__class__ = type(plain.__name__, (_Distributed, plain), {"__module__": plain.__module__, "plain": plain})
    cast("_Distributed", optimizer)._exchange = exchange
    # Hooks, not an override of step: a scheduler that was made earlier has put a wrapper of the plain class's step into
    # the instance, where it would win.
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    return optimizer


class _Distributed(torch.optim.Optimizer):
    """What DistributedOptimizer adds to the optimizer's class."""

    plain: type[torch.optim.Optimizer]
    _exchange: Exchange

    def synchronize(self) -> None:
        """Waits until all gradients are those of all ranks; sends those that backward did not send."""
        self._exchange.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, `step` does not synchronize. Not needed after `synchronize`, which `step` remembers."""
        self._exchange.skip = True
        try:
            yield
        finally:
            self._exchange.skip = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on, `passes` backward passes add to a gradient before it is sent."""
        _check_passes(passes)
        self._exchange.set_passes(passes)

    @eager
    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As in the plain class; an error while gradients are in flight."""
        self._exchange.check_idle("zero_grad()")
        self._exchange.synchronized = False
        super().zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in the plain class; all ranks must add the same groups."""
        super().add_param_group(param_group)
        self._exchange.add_group(self.param_groups[-1]["params"], len(self.param_groups) - 1)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new, (self.plain,), self.__getstate__()


def _new(plain: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    return plain.__new__(plain)


@eager
def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    exchange = cast("_Distributed", optimizer)._exchange
    if exchange.skip:
        exchange.check_idle("step() within skip_synchronize()")
        return None
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        if not exchange.synchronized:
            exchange.synchronize()
        return None
    synchronized_closure = _synchronized(closure, exchange)
    if len(args) > 1:
        return (args[0], synchronized_closure, *args[2:]), kwargs
    return args, {**kwargs, "closure": synchronized_closure}


@eager
def _after_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cast("_Distributed", optimizer)._exchange.synchronized = False


def _synchronized(closure: Closure, exchange: Exchange) -> Closure:
    def synchronized_closure() -> Any:
        loss = closure()
        exchange.synchronize()
        if isinstance(loss, torch.Tensor):
            return push_pull(loss.detach())
        return loss if loss is None else push_pull(torch.tensor(float(loss), dtype=torch.float64)).item()

    return synchronized_closure


def _check_passes(passes: int) -> None:
    if not isinstance(passes, int) or passes < 1:
        raise InvalidArgumentError(f"backward_passes_per_step is {passes!r}: expected 1 or more")


def _checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]]
) -> dict[torch.Tensor, str]:
    names: dict[torch.Tensor, str] = {}
    seen: set[str] = set()
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
