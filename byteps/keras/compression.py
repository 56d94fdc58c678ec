"""Names of the gradient compressors, which each backend implements."""

from __future__ import annotations

from enum import Enum

__all__ = ["Compression"]


class Compression(Enum):
    """The compressors to choose from."""

    none = "none"
    fp16 = "fp16"  # half precision: 11 significant bits, range up to 65504
    bf16 = "bf16"  # bfloat16: 8 significant bits, the range of float32

    def __call__(self) -> Compression:
        """Itself: in BytePS and Horovod they are classes, of which programs make instances."""
        return self
