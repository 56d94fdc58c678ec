"""Compressors of gradients for the network."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from byteps import compression
from byteps.compression import NoneCompressor

__all__ = ["AnyCompressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

Tensor = torch.Tensor
Compressor: TypeAlias = compression.Compressor[Tensor]
AnyCompressor: TypeAlias = type[Compressor] | Compressor  # a class or an instance


class _Cast(compression.CastCompressor[Tensor]):
    @classmethod
    def is_wider(cls, tensor: Tensor) -> bool:
        return tensor.dtype.is_floating_point and tensor.dtype.itemsize > cls.wire_dtype.itemsize

    @staticmethod
    def cast(tensor: Tensor, dtype: Any) -> Tensor:
        return tensor.to(dtype)


class FP16Compressor(_Cast):
    """Half precision: 11 significant bits, range up to 65504, so that large gradients become
    infinite.
    """

    wire_dtype = torch.float16


class BF16Compressor(_Cast):
    """bfloat16: 8 significant bits, the range of float32."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressors of this package."""

    none: type[Compressor] = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
