"""Patches Accelerate, which Hugging Face's Trainer uses, for the backend `byteps`.

For training on CPUs, Accelerate always chooses gloo, and refuses to start if the program has asked
for another backend: TrainingArguments(ddp_backend="byteps", use_cpu=True). Without `use_cpu`, on a
machine without an accelerator, it makes the process group and then trains in each process alone.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["patch_accelerate"]

_MODULE = "accelerate.state"
_NAME = "byteps"


def patch_accelerate() -> None:
    """Patches Accelerate, now or when it is imported."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _patch(module)
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Patches the module when it is imported, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader)
        return spec


class _PatchingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _patch(module)


def _patch(module: ModuleType) -> None:
    """Patches the choice of a backend, for `byteps` only, if this version has the method."""
    state = getattr(module, "PartialState", None)
    kinds = getattr(module, "DistributedType", None)
    choose = getattr(state, "_prepare_backend", None)
    if state is None or kinds is None or choose is None:
        return

    def prepare_backend(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        backend, kind = choose(self, *args, **kwargs)
        asked = kwargs.get("backend", args[2] if len(args) > 2 else None)
        if asked != _NAME:
            return backend, kind
        from byteps.config import process_environment

        if kind == kinds.NO and int(process_environment().get("LOCAL_RANK", -1)) != -1:
            kind = kinds.MULTI_CPU
        return (_NAME if kind == kinds.MULTI_CPU else backend), kind

    state._prepare_backend = prepare_backend
