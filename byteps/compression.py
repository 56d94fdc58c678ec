"""Smaller forms of a tensor for its way over the network: what the compressors of all adapters have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["CastCompressor", "Compressor", "NoneCompressor"]

TensorT = TypeVar("TensorT")


class Compressor(Protocol[TensorT]):
    """Any class with these two static methods will do."""

    @staticmethod
    def compress(tensor: TensorT) -> tuple[TensorT, object]:
        """The tensor to send, and what `decompress` needs to know."""

    @staticmethod
    def decompress(tensor: TensorT, ctx: object) -> TensorT:
        """The tensor as it was before `compress`, but for what the compression lost."""


class NoneCompressor(Generic[TensorT]):
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: TensorT) -> tuple[TensorT, object]:
        return tensor, None

    @staticmethod
    def decompress(tensor: TensorT, ctx: object) -> TensorT:
        return tensor


class CastCompressor(ABC, Generic[TensorT]):
    """Sends floating-point tensors of a wider type as `wire_dtype`; other tensors as they are."""

    wire_dtype: Any

    @classmethod
    def compress(cls, tensor: TensorT) -> tuple[TensorT, object]:
        if not cls.is_wider(tensor):
            return tensor, None
        return cls.cast(tensor, cls.wire_dtype), tensor.dtype  # type: ignore[attr-defined]  # of any framework

    @classmethod
    def decompress(cls, tensor: TensorT, ctx: object) -> TensorT:
        return tensor if ctx is None else cls.cast(tensor, ctx)

    @classmethod
    @abstractmethod
    def is_wider(cls, tensor: TensorT) -> bool:
        """Whether it is a floating-point tensor with more bits than `wire_dtype`."""

    @staticmethod
    @abstractmethod
    def cast(tensor: TensorT, dtype: Any) -> TensorT:
        """The tensor in another dtype of its framework."""
