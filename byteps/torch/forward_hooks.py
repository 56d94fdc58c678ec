"""Forward hooks that bring each module's parameters up to date before the module uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from byteps.torch.bucket import Bucket
from byteps.torch.eager import eager
from byteps.torch.lazy_step import LazyStep

__all__ = ["ForwardHooks"]

Tensor = torch.Tensor


class _Hook:
    """Base class of hooks that copies and pickles of the model do not have."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _NoHook, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _NoHook()


class _NoHook(_Hook):
    def __call__(self, *_: Any) -> None:
        """Does nothing."""


class PreForwardHook(_Hook):
    """Runs before the forward of one module, and waits for the parameters that the module needs."""

    def __init__(self, hooks: ForwardHooks) -> None:
        self.hooks = hooks
        self.buckets: dict[Bucket, None] = {}
        self.parameters: list[Tensor] = []

    @eager
    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.hooks.before_module(self)

    def add(self, parameter: Tensor, bucket: Bucket) -> None:
        self.parameters.append(parameter)
        self.buckets[bucket] = None


class ModelPreForwardHook(PreForwardHook):
    """Runs before the forward of the whole model."""

    @eager
    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.hooks.before_model(self)


class ModelForwardHook(_Hook):
    """Runs after the forward of the whole model, even if it has raised."""

    def __init__(self, hooks: ForwardHooks) -> None:
        self.hooks = hooks

    @eager
    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.hooks.after_model()


class StateDictHook(_Hook):
    """Runs before a state_dict is read or loaded."""

    def __init__(self, lazy: LazyStep) -> None:
        self.lazy = lazy

    @eager
    def __call__(self, *_: Any) -> None:
        self.lazy.flush()


class ForwardHooks:
    """All hooks of a model.

    A module's hook waits for the parameters that the module owns. Some modules use parameters of
    others whose forward is never called, or is called later. So all forward passes before the first
    step are watched: such a parameter is added to the last hook that has run before its first use.
    """

    def __init__(self, model: nn.Module, lazy: LazyStep) -> None:
        self.in_forward = False
        self._lazy = lazy
        self._learns = not any(_is_compiled(module) for module in model.modules())
        self._watch: ParameterUseMode | None = None  # during a forward pass that is watched
        # Parameters whose hook has run, or that were used, in that pass.
        self._seen: set[Tensor] = set()
        self._model_hook = ModelPreForwardHook(self)
        self._last: PreForwardHook = self._model_hook  # the last hook that has run in that pass
        self._install(model)

    def stop_learning(self) -> None:
        """From the first step on, a parameter without a hook would be out of date."""
        self._learns = False
        self._seen.clear()

    def add_to_model_hook(self, parameter: Tensor) -> None:
        """Has the whole model wait for a parameter that is new to the optimizer."""
        bucket = self._lazy.bucket_of(parameter)
        assert bucket is not None
        self._model_hook.add(parameter, bucket)

    def before_model(self, hook: PreForwardHook) -> None:
        self.in_forward = True
        if self._learns and self._watch is None:
            self._seen.clear()
            self._watch = ParameterUseMode(self)
            self._watch.__enter__()  # type: ignore[no-untyped-call]
        self.before_module(hook)

    def after_model(self) -> None:
        self.in_forward = False
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def before_module(self, hook: PreForwardHook) -> None:
        if not self._lazy.is_complete:
            self._lazy.update_before_use(hook.parameters, hook.buckets)
        elif self._watch is not None:
            self._seen.update(hook.parameters)
            self._last = hook

    def on_use(self, parameter: Tensor) -> None:
        """Called when an operation of a watched forward pass takes a parameter."""
        if parameter in self._seen:
            return
        self._seen.add(parameter)
        bucket = self._lazy.bucket_of(parameter)
        if bucket is not None:
            self._last.add(parameter, bucket)

    def _install(self, model: nn.Module) -> None:
        flush = StateDictHook(self._lazy)
        for module in model.modules():
            hook = self._model_hook if module is model else PreForwardHook(self)
            for parameter in module.parameters(recurse=False):
                bucket = self._lazy.bucket_of(parameter)
                if bucket is not None:
                    hook.add(parameter, bucket)
            if hook.buckets or module is model:
                module.register_forward_pre_hook(hook, prepend=True)
            module.register_state_dict_pre_hook(flush)
            module.register_load_state_dict_pre_hook(flush)
        model.register_forward_hook(ModelForwardHook(self), always_call=True)


class ParameterUseMode(TorchDispatchMode):
    """Reports every parameter that an operation takes to `ForwardHooks`."""

    def __init__(self, hooks: ForwardHooks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._hooks = hooks

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for parameter in _parameters_in(args, kwargs):
            self._hooks.on_use(parameter)
        return func(*args, **kwargs)


def _parameters_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, nn.Parameter))


def _is_compiled(module: nn.Module) -> bool:
    return isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None
