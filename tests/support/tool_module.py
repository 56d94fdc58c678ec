"""Imports a program of tools/ as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_TOOLS = Path(__file__).resolve().parents[2] / "tools"


def tool_module(name: str) -> ModuleType:
    """Returns tools/`name`.py as a new module, which takes the name in sys.modules."""
    spec = importlib.util.spec_from_file_location(name, _TOOLS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
