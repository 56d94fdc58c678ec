"""Base classes of the compressors of all adapters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from byteps.errors import InvalidArgumentError

__all__ = ["CastCompressor", "Compressor", "NoneCompressor", "compressor_name", "sends_as_is"]

TensorT = TypeVar("TensorT")


class Compressor(Protocol[TensorT]):
    """The interface of a compressor: a class with these static methods, or an object with them."""

    @staticmethod
    def compress(tensor: TensorT) -> tuple[TensorT, object]:
        """Returns the tensor to send, and a context for `decompress`."""

    @staticmethod
    def decompress(tensor: TensorT, ctx: object) -> TensorT:
        """Reverts `compress`, except for lost precision."""


class NoneCompressor(Generic[TensorT]):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: TensorT) -> tuple[TensorT, object]:
        return tensor, None

    @staticmethod
    def decompress(tensor: TensorT, ctx: object) -> TensorT:
        return tensor


class CastCompressor(ABC, Generic[TensorT]):
    """Sends floating-point tensors of wider types as `wire_dtype`, and other tensors unchanged."""

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
        """Whether `tensor` has a floating-point type with more bits than `wire_dtype`."""

    @staticmethod
    @abstractmethod
    def cast(tensor: TensorT, dtype: Any) -> TensorT:
        """Returns the tensor converted to another dtype of its framework."""


def compressor_name(compression: object) -> str:
    """Returns the compressor's name, for comparisons between ranks.

    Raises:
        InvalidArgumentError: not a compressor.
    """
    if not all(callable(getattr(compression, method, None)) for method in ("compress", "decompress")):
        raise InvalidArgumentError(
            f"compression is {compression!r:.80}: expected one of Compression, or an object with compress "
            "and decompress"
        )
    return compression.__name__ if isinstance(compression, type) else type(compression).__name__


def sends_as_is(compression: object) -> bool:
    """Whether `compression` is Compression.none or an instance of it."""
    return compression is NoneCompressor or isinstance(compression, NoneCompressor)
