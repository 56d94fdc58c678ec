"""Compressors of arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import mxnet as mx
import numpy as np

from byteps import compression
from byteps.compression import NoneCompressor

__all__ = ["AnyCompressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

NDArray: TypeAlias = mx.nd.NDArray
Compressor: TypeAlias = compression.Compressor[NDArray]
AnyCompressor: TypeAlias = type[Compressor] | Compressor  # a class or an instance


class FP16Compressor(compression.CastCompressor[NDArray]):
    """Half precision: 11 significant bits, range up to 65504. Larger gradients become infinite."""

    wire_dtype = np.float16

    @classmethod
    def is_wider(cls, tensor: NDArray) -> bool:
        return tensor.dtype in (np.float32, np.float64)

    @staticmethod
    def cast(tensor: NDArray, dtype: Any) -> NDArray:
        return tensor.astype(dtype)


class Compression:
    """The compressors to choose from."""

    none: type[Compressor] = NoneCompressor
    fp16 = FP16Compressor
