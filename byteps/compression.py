"""Smaller forms of a tensor for its way over the network: what the compressors of all adapters have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from byteps.errors import InvalidArgumentError

__all__ = ["CastCompressor", "Compressor", "NoneCompressor", "compressor_name", "sends_as_is"]

TensorT = TypeVar("TensorT")


class Compressor(Protocol[TensorT]):
    """Any class with these two static methods will do, and any object with these two methods."""

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


def compressor_name(compression: object) -> str:
    """The same on all ranks, for what they compare.

    Raises:
        InvalidArgumentError: not a compressor.
    """
    if not all(callable(getattr(compression, method, None)) for method in ("compress", "decompress")):
        raise InvalidArgumentError(
            f"compression is {compression!r:.80}: expected one of Compression, or what has compress and decompress"
        )
    return compression.__name__ if isinstance(compression, type) else type(compression).__name__


def sends_as_is(compression: object) -> bool:
    """Whether it is Compression.none, or an instance of it."""
    return compression is NoneCompressor or isinstance(compression, NoneCompressor)
