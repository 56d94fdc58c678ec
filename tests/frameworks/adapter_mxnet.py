"""The adapter of byteps.mxnet for the conformance suite.

Arrays are those of mx.np, which may have no elements.
"""

from __future__ import annotations

from typing import Any

import byteps.mxnet as bps  # must come before mxnet
import mxnet as mx
import numpy as np

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")
HAS_HANDLES = False
__all__ = [
    "DTYPES",
    "HAS_HANDLES",
    "bps",
    "broadcast",
    "from_numpy",
    "push_pull",
    "push_pull_async",
    "synchronize",
    "to_numpy",
]

mx.npx.set_np()


def push_pull(array: mx.np.ndarray, average: bool | None = None, name: Any = None, op: Any = None) -> mx.np.ndarray:
    return synchronize(bps.push_pull(array, average, name, op=op))


def push_pull_async(array: mx.np.ndarray, name: str, op: Any = None) -> mx.np.ndarray:
    return bps.push_pull(array, name=name, op=op)


def synchronize(array: mx.np.ndarray) -> mx.np.ndarray:
    array.wait_to_read()
    return array


def broadcast(array: mx.np.ndarray, root_rank: int, name: str) -> mx.np.ndarray:
    return synchronize(bps.broadcast(array, root_rank, name))


def from_numpy(array: np.ndarray, dtype: str) -> mx.np.ndarray:
    return mx.np.array(array, dtype=dtype)


def to_numpy(array: mx.np.ndarray) -> np.ndarray:
    return array.asnumpy()
