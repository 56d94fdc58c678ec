"""byteps: sums gradients over the processes of data-parallel training.

This module works on NumPy arrays. `byteps.torch`, `byteps.tensorflow`, `byteps.keras` and
`byteps.mxnet` are the adapters for frameworks. Submodules are imported at their first use.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from byteps.numpy import broadcast, push_pull, push_pull_async
    from byteps.objects import broadcast_object
    from byteps.ops import Average, Handle, Max, Min, Product, Sum, poll, synchronize
    from byteps.runtime import (
        barrier,
        cross_rank,
        cross_size,
        get_pushpull_speed,
        init,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        metrics,
        rank,
        resume,
        shutdown,
        size,
        suspend,
    )

    __version__: str

_MODULE_OF = {
    **dict.fromkeys(("broadcast", "push_pull", "push_pull_async"), "byteps.numpy"),
    "broadcast_object": "byteps.objects",
    **dict.fromkeys(("Average", "Handle", "Max", "Min", "Product", "Sum", "poll", "synchronize"), "byteps.ops"),
    **dict.fromkeys(
        (
            "barrier",
            "cross_rank",
            "cross_size",
            "get_pushpull_speed",
            "init",
            "is_homogeneous",
            "is_initialized",
            "local_rank",
            "local_size",
            "metrics",
            "rank",
            "resume",
            "shutdown",
            "size",
            "suspend",
        ),
        "byteps.runtime",
    ),
}

__all__ = [
    "Average",
    "Handle",
    "Max",
    "Min",
    "Product",
    "Sum",
    "__version__",
    "barrier",
    "broadcast",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "get_pushpull_speed",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "metrics",
    "poll",
    "push_pull",
    "push_pull_async",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("byteps")
    if name == "_core" and importlib.util.find_spec("byteps._core") is None:
        raise ImportError(
            f"byteps in {__path__[0]} has no native module byteps._core: this is a clone that was not built. Run "
            "`make build` or `pip install .` there; if byteps is installed elsewhere, start from another folder, "
            "since Python looks here first"
        )
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'byteps' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
