"""Hooks of a model by which each module's parameters are up to date before its forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from byteps.torch.eager import eager
from byteps.torch.lazy_step import LazyStep
from byteps.torch.parcel import Parcel

__all__ = ["Gates"]

Tensor = torch.Tensor


class _Hook:
    """A hook that copies and pickles of the model do not have."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _NoHook, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _NoHook()


class _NoHook(_Hook):
    def __call__(self, *_: Any) -> None:
        """Nothing to do."""


class Gate(_Hook):
    """Before the forward of one module: waits for the parameters that it needs."""

    def __init__(self, gates: Gates) -> None:
        self.gates = gates
        self.parcels: dict[Parcel, None] = {}
        self.parameters: list[Tensor] = []

    @eager
    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.gates.pass_through(self)

    def add(self, parameter: Tensor, parcel: Parcel) -> None:
        self.parameters.append(parameter)
        self.parcels[parcel] = None


class Begin(Gate):
    """Before the forward of the whole model."""

    @eager
    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.gates.enter(self)


class End(_Hook):
    """After the forward of the whole model, even if it failed."""

    def __init__(self, gates: Gates) -> None:
        self.gates = gates

    @eager
    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.gates.leave()


class Flush(_Hook):
    """Before a state_dict is read or loaded."""

    def __init__(self, lazy: LazyStep) -> None:
        self.lazy = lazy

    @eager
    def __call__(self, *_: Any) -> None:
        self.lazy.flush()


class Gates:
    """All gates of a model.

    A module's gate is for the parameters that the module owns. Some modules use parameters of others, whose forward is
    never called, or later: until the first step all forward passes are watched, and such a parameter is given to the
    last gate before its first use.
    """

    def __init__(self, model: nn.Module, lazy: LazyStep) -> None:
        self.in_forward = False
        self._lazy = lazy
        self._watch: FirstUse | None = None
        self._learns = not any(_is_compiled(module) for module in model.modules())
        self._visited: set[Tensor] = set()
        self._root = Begin(self)
        self._last: Gate = self._root  # that the watched forward pass has come by
        self._install(model)

    def stop_learning(self) -> None:
        """From the first step on: the step is lazy, so what is not known by now would be wrong already."""
        self._learns = False
        self._visited.clear()

    def add_to_root(self, parameter: Tensor) -> None:
        """A parameter that the optimizer has got only now: the whole model waits for it."""
        parcel = self._lazy.parcel_of(parameter)
        assert parcel is not None
        self._root.add(parameter, parcel)

    def enter(self, gate: Gate) -> None:
        self.in_forward = True
        if self._learns and self._watch is None:
            self._visited.clear()
            self._watch = FirstUse(self)
            self._watch.__enter__()  # type: ignore[no-untyped-call]
        self.pass_through(gate)

    def leave(self) -> None:
        self.in_forward = False
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def pass_through(self, gate: Gate) -> None:
        if not self._lazy.idle:
            self._lazy.pass_gate(gate.parameters, gate.parcels)
        elif self._watch is not None:
            self._visited.update(gate.parameters)
            self._last = gate

    def on_use(self, parameter: Tensor) -> None:
        """A parameter is an argument of an operation of a watched forward pass."""
        if parameter in self._visited:
            return
        self._visited.add(parameter)
        parcel = self._lazy.parcel_of(parameter)
        if parcel is not None:
            self._last.add(parameter, parcel)

    def _install(self, model: nn.Module) -> None:
        flush = Flush(self._lazy)
        for module in model.modules():
            gate = self._root if module is model else Gate(self)
            for parameter in module.parameters(recurse=False):
                parcel = self._lazy.parcel_of(parameter)
                if parcel is not None:
                    gate.add(parameter, parcel)
            if gate.parcels or module is model:
                module.register_forward_pre_hook(gate, prepend=True)
            module.register_state_dict_pre_hook(flush)
            module.register_load_state_dict_pre_hook(flush)
        model.register_forward_hook(End(self), always_call=True)


class FirstUse(TorchDispatchMode):
    """Tells `Gates` of every parameter that an operation takes."""

    def __init__(self, gates: Gates) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gates = gates

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for parameter in _parameters_in(args, kwargs):
            self._gates.on_use(parameter)
        return func(*args, **kwargs)


def _parameters_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, nn.Parameter))


def _is_compiled(module: nn.Module) -> bool:
    return isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None
