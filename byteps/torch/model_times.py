"""Measures when a training step of a model computes each gradient, and when it uses each parameter."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from byteps.errors import InvalidArgumentError

__all__ = ["ParameterTimes", "StepTimes", "measure"]

_WARMUP = 3
_STEPS = 7

Mark = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ParameterTimes:
    """A parameter that gets a gradient."""

    name: str
    elements: int
    element_bytes: int
    ready_s: float  # from the start of backward until the gradient is computed
    needed_s: float  # from the start of forward until the first module that has the parameter


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Medians of several steps. The parameters are in the order in which forward uses them."""

    parameters: list[ParameterTimes]
    forward_s: float  # with the loss
    backward_s: float


def measure(make: Callable[[], Any]) -> StepTimes:
    """Trains the model that `make()` returns for some steps, on one process and without an optimizer.

    `make` returns (model, inputs) or (model, inputs, loss). Inputs: a tensor, a sequence of positional or a mapping
    of keyword arguments. `loss` gets the model's output; without it, the loss is the output's attribute `loss`, or
    the sum of all its tensors.
    """
    made = make()
    if not isinstance(made, tuple) or len(made) not in {2, 3} or not isinstance(made[0], torch.nn.Module):
        raise InvalidArgumentError("expected a function that returns (model, inputs) or (model, inputs, loss)")
    model, inputs = made[:2]
    loss = made[2] if len(made) == 3 else _loss_of
    clock = _Clock(next((each.device for each in model.parameters()), torch.device("cpu")))
    model.train()
    steps = []
    with _watch(model, clock) as (used, computed):
        for _ in range(_WARMUP + _STEPS):
            steps.append(_step(model, inputs, loss, clock, used, computed))
    return _medians(model, steps[_WARMUP:])


class _Clock:
    """Times on the device that computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = None if device.type == "cpu" else device

    def now(self) -> Any:
        if self._device is None:
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        if self._device is not None:
            torch.accelerator.synchronize(self._device)

    def between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1e3 if self._device is not None else end - start


@contextlib.contextmanager
def _watch(model: torch.nn.Module, clock: _Clock) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
    """Notes the first use and the gradient of each parameter."""
    used: dict[Any, Any] = {}
    computed: dict[Any, Any] = {}

    def on_forward(module: torch.nn.Module, *_: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter not in used:
                used[parameter] = clock.now()

    def on_gradient(parameter: torch.Tensor) -> None:
        computed[parameter] = clock.now()

    handles = [module.register_forward_pre_hook(on_forward) for module in model.modules()]
    handles += [
        parameter.register_post_accumulate_grad_hook(on_gradient)
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    try:
        yield used, computed
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True, slots=True)
class _Step:
    forward_s: float
    backward_s: float
    needed_s: Mapping[Any, float]
    ready_s: Mapping[Any, float]


def _step(
    model: torch.nn.Module,
    inputs: Any,
    loss: Callable[[Any], torch.Tensor],
    clock: _Clock,
    used: dict[Any, Any],
    computed: dict[Any, Any],
) -> _Step:
    model.zero_grad(set_to_none=True)
    used.clear()
    computed.clear()
    clock.wait()
    start = clock.now()
    value = loss(_call(model, inputs))
    middle = clock.now()
    value.backward()
    end = clock.now()
    clock.wait()
    return _Step(
        clock.between(start, middle),
        clock.between(middle, end),
        {parameter: clock.between(start, when) for parameter, when in used.items()},
        {parameter: clock.between(middle, when) for parameter, when in computed.items()},
    )


def _call(model: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, Sequence) else model(inputs)


def _loss_of(output: Any) -> torch.Tensor:
    value = getattr(output, "loss", None)
    if isinstance(value, torch.Tensor):
        return value
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, Sequence) else [output]
    tensors = [part.float().sum() for part in parts if isinstance(part, torch.Tensor) and part.requires_grad]
    if not tensors:
        raise InvalidArgumentError(f"the model returns {type(output).__name__}: expected tensors, or a loss function")
    return torch.stack(tensors).sum()


def _medians(model: torch.nn.Module, steps: Sequence[_Step]) -> StepTimes:
    def median(values: Iterator[float]) -> float:
        return statistics.median(list(values))

    parameters = [
        ParameterTimes(
            name,
            parameter.numel(),
            parameter.element_size(),
            median(step.ready_s[parameter] for step in steps),
            # A module may use the parameters of others, without a call of these.
            median(step.needed_s.get(parameter, 0.0) for step in steps),
        )
        for name, parameter in model.named_parameters()
        if all(parameter in step.ready_s for step in steps)
    ]
    if not parameters:
        raise InvalidArgumentError("no parameter of the model gets a gradient")
    return StepTimes(
        sorted(parameters, key=lambda each: each.needed_s),
        median(step.forward_s for step in steps),
        median(step.backward_s for step in steps),
    )
