"""Smaller forms of a gradient for its way over the network."""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["Compression", "Compressor"]


class Compressor(Protocol):
    """Any class with these two static methods will do."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """The tensor to send, and what `decompress` needs to know."""

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """The tensor as it was before `compress`, but for what the compression lost."""


class NoneCompressor:
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        return tensor


class CastCompressor:
    """Sends floating-point tensors of a wider type as `wire_dtype`; other tensors as they are."""

    wire_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        if tensor.dtype.is_floating_point and tensor.dtype.itemsize > cls.wire_dtype.itemsize:
            return tensor.to(cls.wire_dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        return tensor.to(ctx) if isinstance(ctx, torch.dtype) else tensor


class FP16Compressor(CastCompressor):
    """Half precision: 11 significant bits, range up to 65504, so that large gradients become infinite."""

    wire_dtype = torch.float16


class BF16Compressor(CastCompressor):
    """bfloat16: 8 significant bits, the range of float32."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
