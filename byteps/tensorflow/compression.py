"""Smaller forms of a gradient for its way over the network."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf

__all__ = ["Compression", "Compressor"]


class Compressor(Protocol):
    """Any class with these two static methods will do."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, object]:
        """The tensor to send, and what `decompress` needs to know."""

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: object) -> tf.Tensor:
        """The tensor as it was before `compress`, but for what the compression lost."""


class NoneCompressor:
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, object]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: object) -> tf.Tensor:
        return tensor


class CastCompressor:
    """Sends floating-point tensors of a wider type as `wire_dtype`; other tensors as they are."""

    wire_dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, object]:
        if tensor.dtype.is_floating and tensor.dtype.size > cls.wire_dtype.size:
            return tf.cast(tensor, cls.wire_dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: object) -> tf.Tensor:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(CastCompressor):
    """Half precision: 11 significant bits, range up to 65504, so that large gradients become infinite."""

    wire_dtype = tf.float16


class BF16Compressor(CastCompressor):
    """bfloat16: 8 significant bits, the range of float32."""

    wire_dtype = tf.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
