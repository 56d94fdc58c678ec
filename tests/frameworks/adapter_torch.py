"""What the conformance suite needs to know of byteps.torch."""

from __future__ import annotations

import numpy as np
import torch

import byteps.torch as bps
from byteps.torch import broadcast, poll, push_pull, push_pull_async, synchronize

HAS_HANDLES = True
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
__all__ = [
    "DTYPES",
    "HAS_HANDLES",
    "bps",
    "broadcast",
    "from_numpy",
    "poll",
    "push_pull",
    "push_pull_async",
    "synchronize",
    "to_numpy",
]


def from_numpy(array: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(getattr(torch, dtype))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
