"""How each kind of object of a TorchState is saved, restored and made the same on all ranks."""

from __future__ import annotations

import copy
from typing import Any

import torch

from byteps.objects import broadcast_object
from byteps.torch.broadcast import broadcast_optimizer_state, broadcast_parameters
from byteps.torch.elastic.sampler import ElasticSampler

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateDictHandler",
    "StateHandler",
    "get_handler_registry",
    "handler_of",
    "set_handler_registry",
]


class StateHandler:
    """The base class of handlers. Each has one object, as `value`, and one copy of its state."""

    def __init__(self, value: Any) -> None:
        """Saves the state of `value`."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Copies the state."""
        raise NotImplementedError(f"{type(self).__name__} has no save()")

    def restore(self) -> None:
        """Returns to the state that was saved."""
        raise NotImplementedError(f"{type(self).__name__} has no restore()")

    def sync(self) -> None:
        """Makes the state rank 0's on all ranks. Blocks; all ranks call it."""
        raise NotImplementedError(f"{type(self).__name__} has no sync()")

    def sync_after_loss(self) -> None:
        """See `byteps.elastic.State.sync_after_loss`. By default this does nothing."""

    def set_value(self, value: Any) -> None:
        """Replaces the object, and saves the state of the new one."""
        self.value = value
        self.save()


class StateDictHandler(StateHandler):
    """Handles objects with `state_dict` and `load_state_dict`, such as a learning rate scheduler.

    Tensors are copied to host memory.
    """

    def save(self) -> None:
        self._saved = _in_host_memory(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(_in_host_memory(self.value.state_dict()), 0))


class ModelStateHandler(StateDictHandler):
    """Handles modules: parameters, buffers, and what `get_extra_state` returns."""

    def sync(self) -> None:
        state = self.value.state_dict()
        tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        broadcast_parameters(tensors, root_rank=0)
        if len(tensors) < len(state):
            state.update(broadcast_object({name: state[name] for name in state if name not in tensors}, 0))
            self.value.load_state_dict(state)


class OptimizerStateHandler(StateDictHandler):
    """Handles optimizers: their state, and options such as the learning rate."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(StateHandler):
    """Handles an ElasticSampler, which gathers what each rank has used."""

    def save(self) -> None:
        self._saved = self.value.save()

    def restore(self) -> None:
        self.value.restore(self._saved)

    def sync(self) -> None:
        self.value.sync()

    def sync_after_loss(self) -> None:
        self.value.sync()


Registry = list[tuple[type[Any], type[StateHandler]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    """Returns classes and the handlers of their instances; the first one that fits is used."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Replaces the registry; see `get_handler_registry`."""
    global _registry  # noqa: PLW0603
    _registry = registry


def handler_of(value: Any) -> StateHandler | None:
    """Returns a new handler of `value`; None if it is an ordinary object."""
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    has_state = callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    return StateDictHandler(value) if has_state and not isinstance(value, type) else None


def _in_host_memory(value: Any) -> Any:
    """Copies a state_dict. GPUs may have no memory left for the copy."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = copy.copy(value)  # with the attributes of the dictionary: modules have versions there
        copied.update((key, _in_host_memory(item)) for key, item in value.items())
        return copied
    if type(value) in {list, tuple}:
        return type(value)(map(_in_host_memory, value))
    return copy.deepcopy(value)
