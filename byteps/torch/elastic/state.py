"""The state of a PyTorch training program."""

from __future__ import annotations

from typing import Any

from byteps.elastic import ObjectState
from byteps.torch.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateDictHandler,
    StateHandler,
    get_handler_registry,
    handler_of,
    set_handler_registry,
)

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateDictHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(ObjectState):
    """Models, optimizers, samplers and other objects of a training program, as attributes.

        state = TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, epoch=0, batch=0)

    Copies are in host memory. Objects that are neither modules nor optimizers nor samplers, and
    have no `state_dict`, are handled as by ObjectState.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **attributes: Any) -> None:
        """Creates the state.

        Args:
            model: a module, or None.
            optimizer: an optimizer, wrapped by DistributedOptimizer or not, or None.
            attributes: further objects by name, also modules and optimizers.

        Raises:
            InvalidArgumentError: the name of a method, or an object that cannot be copied.
        """
        attributes = {"model": model, "optimizer": optimizer, **attributes}
        self._check_names(attributes)
        handlers = {name: handler for name, value in attributes.items() if (handler := handler_of(value)) is not None}
        self._handlers = handlers
        super().__init__(**{name: value for name, value in attributes.items() if name not in handlers})
        for name, handler in handlers.items():
            super().__setattr__(name, handler.value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Makes all objects those of rank 0, as they are now, and saves them.

        Raises:
            InvalidArgumentError: on all ranks: their models differ. See also `ObjectState.sync`.
        """
        for handler in self._handlers.values():
            handler.sync()
            handler.save()
        super().sync()

    def sync_after_loss(self) -> None:
        """Gathers what the samplers of all ranks have used, and saves it. All ranks call it."""
        for handler in self._handlers.values():
            handler.sync_after_loss()
        self.save()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)
