"""Compressors of gradients."""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf

from byteps import compression
from byteps.compression import NoneCompressor

__all__ = ["AnyCompressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

Tensor: TypeAlias = tf.Tensor
Compressor: TypeAlias = compression.Compressor[Tensor]
AnyCompressor: TypeAlias = type[Compressor] | Compressor  # a class or an instance


class _Cast(compression.CastCompressor[Tensor]):
    @classmethod
    def is_wider(cls, tensor: Tensor) -> bool:
        return bool(tensor.dtype.is_floating and tensor.dtype.size > cls.wire_dtype.size)

    @staticmethod
    def cast(tensor: Tensor, dtype: Any) -> Tensor:
        return tf.cast(tensor, dtype)


class FP16Compressor(_Cast):
    """Half precision: 11 significant bits, range up to 65504. Larger gradients become infinite."""

    wire_dtype = tf.float16


class BF16Compressor(_Cast):
    """bfloat16: 8 significant bits, the range of float32."""

    wire_dtype = tf.bfloat16


class Compression:
    """The compressors to choose from."""

    none: type[Compressor] = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
