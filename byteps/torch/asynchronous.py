"""Asynchronous training: summation services store the weights, and ranks push their changes of the
weights.

`DistributedOptimizer` makes an optimizer asynchronous with this module. A step runs the plain
optimizer on this rank's own gradients. Then it adds the change of this rank's weights to those of
the services, and gets the sum. So gradients never leave the rank, and a slow rank delays others
only as far as the staleness allows (`byteps.ops.seed_buffer`). docs/async.md gives the reasons.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

from byteps.agreement import check_agreement
from byteps.asynchronous import SKIPPED_UPDATE, change_divisor, check_op_of_changes, describe_mode, settle_weights
from byteps.dynamic_subclass import DynamicSubclass, become_subclass
from byteps.errors import InvalidArgumentError
from byteps.ops import Handle, ReduceOp, accumulate_buffer, check_staleness, seed_buffer
from byteps.runtime import Job, current_job
from byteps.torch.eager import eager
from byteps.torch.nested_step import StepView, closure_of, step_view
from byteps.torch.start import synchronize_all
from byteps.torch.tensor import Staged, stage

__all__ = ["choose_staleness", "make_asynchronous", "warn_if_asynchronous"]

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)
Tensor = torch.Tensor

log = logging.getLogger("byteps")


def choose_staleness(asynchronous: bool | None, staleness: float | None) -> float | None:
    """Returns the staleness by the arguments or the environment. None: synchronous training."""
    if staleness is not None:
        check_staleness(staleness)
    config = current_job().config
    if not (config.asynchronous if asynchronous is None else asynchronous):
        if staleness is not None:
            raise InvalidArgumentError(
                f"DistributedOptimizer: staleness is {staleness}, but training is synchronous: expected "
                "asynchronous=True or BYTEPS_ENABLE_ASYNC=1 with it"
            )
        return None
    return config.staleness if staleness is None else staleness


def warn_if_asynchronous(name: str) -> None:
    """Warns that `name` ignores BYTEPS_ENABLE_ASYNC, if it is set."""
    if current_job().config.asynchronous:
        log.warning(
            "%s trains synchronously: BYTEPS_ENABLE_ASYNC=1 has no effect on it. Asynchronous training needs "
            "DistributedOptimizer alone",
            name,
        )


def make_asynchronous(
    optimizer: OptimizerT, names: dict[Tensor, str], label: Callable[[], str], op: ReduceOp, staleness: float
) -> OptimizerT:
    """Makes `optimizer` store its weights in the summation services, and returns it.

    Args:
        optimizer: of any class. The same object is returned, so references to it stay valid.
        names: of its parameters, in the order in which the forward pass needs them. The same on all
            ranks.
        label: makes the prefix of the weights' names, for each job anew. It is the same as for
            gradients, so that ranks that train synchronously and ranks that do not find their
            difference.
        op: Average weighs each rank's change by 1 / size, as its gradient would be; Sum by 1, as in
            BytePS.
        staleness: number of steps that a rank may be ahead of the slowest one, or `math.inf`.

    Raises:
        InvalidArgumentError: another op. On all ranks: their arguments differ, or some train
            synchronously.
    """
    check_op_of_changes("DistributedOptimizer", op)
    weights = _Weights(names, label, op, staleness)
    for index, group in enumerate(optimizer.param_groups):
        weights.add_group(group["params"], index)
    weights.begin()
    become_subclass(optimizer, _Asynchronous)
    cast("_Asynchronous", optimizer)._weights = weights
    # Hooks instead of a step method: see DistributedOptimizer.
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    return optimizer


class _Asynchronous(DynamicSubclass, torch.optim.Optimizer):
    """Methods that are added to the optimizer's class."""

    _weights: _Weights

    def settle(self) -> None:
        """Gets the weights with every rank's changes. Blocks until all ranks have called it.

        Call it before the weights are evaluated or saved, and at the end: the part of the weights
        that a rank's process stores is lost when the rank leaves.
        """
        self._weights.settle()

    def synchronize(self) -> None:
        """Does nothing: a step uses this rank's own gradients. For scripts that clip gradients."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Changes nothing, like `synchronize`."""
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes nothing: gradients add up on this rank until it steps."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See the plain class. All ranks must add the same groups."""
        super().add_param_group(param_group)
        self._weights.add_group(self.param_groups[-1]["params"], len(self.param_groups) - 1)


@eager
def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(optimizer, StepView):
        return None
    changed = cast("_Asynchronous", optimizer)._weights.join()
    if changed and closure_of(args, kwargs) is None:  # a closure computes its gradients later
        log.info(SKIPPED_UPDATE)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
    return (step_view(optimizer, optimizer.param_groups), *args[1:]), kwargs


@eager
def _after_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not isinstance(optimizer, StepView):
        cast("_Asynchronous", optimizer)._weights.exchange()


class _Weight:
    """One parameter, and the value that the services gave last; in flight, its change."""

    __slots__ = ("base", "name", "parameter", "priority")

    def __init__(self, parameter: Tensor, name: str, priority: int) -> None:
        self.parameter = parameter
        self.name = name
        self.priority = priority
        self.base: Tensor | None = None  # None: not joined


class _Weights:
    """The weights of one optimizer. Only the thread of the training loop may call the methods."""

    def __init__(self, names: dict[Tensor, str], label: Callable[[], str], op: ReduceOp, staleness: float) -> None:
        self._names = names
        self._positions = {parameter: position for position, parameter in enumerate(names)}
        self._label = label
        self._prefix = ""
        self._op = op
        self._staleness = staleness
        self._weights: list[_Weight] = []
        self._job: weakref.ref[Job] | None = None  # the job whose services store the weights

    def add_group(self, parameters: Iterable[Tensor], group: int) -> None:
        """Adds `parameters`, the optimizer's group number `group`."""
        for index, parameter in enumerate(parameters):
            name = self._names.get(parameter, f"group{group}.{index}")
            position = self._positions.get(parameter, len(self._weights))
            self._weights.append(_Weight(parameter, name, -position))

    def begin(self) -> None:
        """Compares the ranks' parameters and arguments, once in each job, before the first step.

        Raises:
            InvalidArgumentError: on all ranks: they differ.
        """
        self._prefix = self._label()
        self._check_agreement()
        self._job = weakref.ref(current_job())

    def _check_agreement(self) -> None:
        arguments = f"{describe_mode(self._staleness)}, op={self._op.name}"
        lines = [
            f"'{weight.name}' of {weight.parameter.dtype} {list(weight.parameter.shape)}" for weight in self._weights
        ]
        check_agreement("DistributedOptimizer", [arguments, *sorted(lines)], f"{self._prefix}agreement")

    @torch.no_grad()
    def join(self) -> bool:
        """Gets the weights that this rank does not have yet: those of rank 0 when it joined, with
        all changes since.

        Returns:
            Whether they differ from the weights that this rank has computed its gradients with.
        """
        job = current_job()
        if self._job is None or self._job() is not job:  # the next one, after suspend and resume
            self.begin()
            for weight in self._weights:
                weight.base = None
        if job.size == 1:
            return False
        newcomers = [each for each in self._weights if each.base is None and each.parameter.requires_grad]
        handles = [self._seed(weight) for weight in newcomers]
        changed = False
        for weight, base in zip(newcomers, synchronize_all(handles), strict=True):
            weight.base = base
            if not torch.equal(base, weight.parameter):
                changed = True
                weight.parameter.copy_(base)
        return changed

    @torch.no_grad()
    def exchange(self) -> None:
        """Adds this rank's changes to the weights of the services, and gets the sum.

        Changes made outside of the optimizer are included. After an error this rank keeps its own
        weights, and the next step begins with those of the services.

        Raises:
            BytePSError: a push_pull has failed.
        """
        joined = [weight for weight in self._weights if weight.base is not None]
        try:
            # All start before the first is waited for.
            handles = [self._push(weight) for weight in joined]
            bases = synchronize_all(handles)
        except BaseException:
            for weight in joined:
                weight.base = None
            raise
        for weight, base in zip(joined, bases, strict=True):
            weight.parameter.copy_(base)

    @torch.no_grad()
    def settle(self) -> None:
        self.join()
        settle_weights(self._read)

    def _read(self) -> None:
        joined = [weight for weight in self._weights if weight.base is not None]
        handles = [self._seed(weight) for weight in joined]
        for weight, base in zip(joined, synchronize_all(handles), strict=True):
            weight.base = base
            weight.parameter.copy_(base)

    def _seed(self, weight: _Weight) -> Handle:
        base = weight.parameter.detach().clone()
        staged = stage(base, on_host=True)
        name = self._prefix + weight.name
        return seed_buffer(staged.buffer, name, self._staleness, weight.priority, _copier_back(staged, base))

    def _push(self, weight: _Weight) -> Handle:
        base = weight.base
        assert base is not None
        change = torch.sub(weight.parameter, base, out=base)
        if (divisor := change_divisor(self._op)) > 1:
            change.div_(divisor)
        staged = stage(change, on_host=True)
        name, finish = self._prefix + weight.name, _copier_back(staged, change)
        return accumulate_buffer(staged.buffer, staged.buffer, name, self._staleness, weight.priority, finish)


def _copier_back(staged: Staged, tensor: Tensor) -> Callable[[], Tensor]:
    """Returns a function that copies a staged result to `tensor`, and returns `tensor`."""

    def finish() -> Tensor:
        staged.copy_back(tensor)
        return tensor

    return finish
