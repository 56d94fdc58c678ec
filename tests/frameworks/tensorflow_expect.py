"""Checks that the cases of byteps.tensorflow's operators share."""

from __future__ import annotations

from typing import Any

import numpy as np

import byteps.tensorflow as bps
from byteps import size


def total() -> int:
    """The sum of rank + 1 over all ranks."""
    return size() * (size() + 1) // 2


def push_pulls() -> int:
    return int(bps.metrics()["push_pulls"])


def assert_equal(tensor: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(tensor), np.asarray(expected))


def nodes_of(function: Any, *arguments: Any, type_prefix: str = "Byteps") -> list[Any]:
    graph = function.get_concrete_function(*arguments).graph
    return [node for node in graph.get_operations() if node.type.startswith(type_prefix)]
