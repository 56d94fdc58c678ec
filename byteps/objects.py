"""Broadcasts of Python objects and bytes."""

from __future__ import annotations

import ctypes
import pickle
from typing import TypeVar, cast

from byteps.errors import InvalidArgumentError
from byteps.ops import Buffer, broadcast_buffer, check_root, synchronize
from byteps.runtime import current_job

__all__ = ["broadcast_bytes", "broadcast_object"]

T = TypeVar("T")
SMALLEST_PAYLOAD = 256
PICKLED, FAULT = 0, 1  # kinds of payloads


def broadcast_object(obj: T, root_rank: int = 0, name: str | None = None) -> T:
    """Returns rank `root_rank`'s object. Blocks.

    The object is pickled, and unpickling can run code of the sender, which has proved that it knows
    the job's secret.

    Args:
        obj: an object that can be pickled, of any size; ignored on the other ranks.
        root_rank: the rank that sends its object.
        name: needed only if several threads call this at the same time.

    Raises:
        InvalidArgumentError: on all ranks: the object cannot be pickled.
    """
    check_root(root_rank)
    if current_job().size == 1:
        return obj
    is_root = current_job().rank == root_rank
    kind, payload = _pickled(obj) if is_root else (PICKLED, b"")
    kind, payload = _broadcast_tagged(kind, payload, root_rank, f"byteps.object.{name or ''}")
    if kind == FAULT:
        raise InvalidArgumentError(f"broadcast_object from rank {root_rank}: {payload.decode()}")
    return obj if is_root else cast(T, pickle.loads(payload))


def broadcast_bytes(payload: bytes, root_rank: int, name: str) -> bytes:
    """Returns rank `root_rank`'s bytes. Blocks. Ignores the payload of other ranks."""
    return _broadcast_tagged(PICKLED, payload, root_rank, name)[1]


def _pickled(obj: object) -> tuple[int, bytes]:
    try:
        return PICKLED, pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # __reduce__ of any class may raise anything
        return FAULT, f"cannot pickle {type(obj).__name__}: {error}".encode()


def _broadcast_tagged(kind: int, payload: bytes, root_rank: int, name: str) -> tuple[int, bytes]:
    """Broadcasts the size, then the payload, padded to a power of two, which bounds the names."""
    header = (ctypes.c_int64 * 2)(kind, len(payload))
    _broadcast_memory(header, root_rank, f"{name}.header")
    kind, nbytes = header
    padded = max(SMALLEST_PAYLOAD, 1 << (nbytes - 1).bit_length())
    buffer = ctypes.create_string_buffer(payload, padded)
    _broadcast_memory(buffer, root_rank, f"{name}.{padded}")
    return kind, buffer.raw[:nbytes]


def _broadcast_memory(memory: ctypes.Array[ctypes.c_int64] | ctypes.Array[ctypes.c_char], root: int, name: str) -> None:
    buffer = Buffer(ctypes.addressof(memory), ctypes.sizeof(memory), "uint8", memory)
    synchronize(broadcast_buffer(buffer, root, name, finish=lambda: None))
