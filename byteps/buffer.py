"""The memory of a tensor, as the adapters pass it to the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from byteps import _core
from byteps.device import Device

__all__ = ["DTYPE_BYTES", "DTYPE_CODES", "Buffer"]

DTYPE_CODES = _core.DTYPE_CODES
DTYPE_BYTES = _core.DTYPE_BYTES


class Buffer(NamedTuple):
    """The memory of a tensor."""

    ptr: int
    nbytes: int
    dtype: str  # a key of DTYPE_CODES
    owner: object  # keeps the memory alive
    shape: Sequence[int] | None = None  # the same on all ranks; None: one dimension
    order: Sequence[int] = ()  # order of the dimensions in memory; empty: row-major
    device: Device | None = None  # whose memory it is; None: the host's
