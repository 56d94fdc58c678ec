"""The adapter of byteps.tensorflow for the conformance suite."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

import byteps.tensorflow as bps
from byteps.tensorflow import push_pull as _push_pull

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
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

_threads = ThreadPoolExecutor(32)


def push_pull(tensor: tf.Tensor, average: bool | None = None, name: Any = None, op: Any = None) -> tf.Tensor:
    return _push_pull(tensor, average=average, name=name, op=op)


def broadcast(tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
    return bps.broadcast(tensor, root_rank, name=name)


def push_pull_async(tensor: tf.Tensor, name: str, op: Any = None) -> Future[tf.Tensor]:
    return _threads.submit(push_pull, tensor, name=name, op=op)


def synchronize(handle: Future[tf.Tensor]) -> tf.Tensor:
    return handle.result()


def from_numpy(array: np.ndarray, dtype: str) -> tf.Tensor:
    return tf.cast(tf.constant(array), dtype)


def to_numpy(tensor: tf.Tensor) -> np.ndarray:
    return (tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor).numpy()
