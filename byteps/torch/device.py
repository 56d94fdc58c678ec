"""Devices whose memory the core copies itself. Only this file uses torch.cuda."""

from __future__ import annotations

import functools
import logging

import torch

from byteps import _core
from byteps.device import Device
from byteps.errors import BytePSError

__all__ = ["device_of"]

log = logging.getLogger("byteps")


class _CudaDevice:
    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def current_stream(self) -> int:
        return _raw_stream(self.index)


def _raw_stream_of_object(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


# The number without an object for it takes a tenth of the time.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream_of_object)


@functools.cache
def device_of(device: torch.device) -> Device | None:
    """Returns the device, or None if its tensors have to be copied to host tensors by PyTorch."""
    if device.type != "cuda" or device.index is None or torch.version.cuda is None:
        return None
    try:
        _core.cuda_version()
    except BytePSError as error:
        log.warning("tensors on %s are copied by PyTorch, which is slower: %s", device, error)
        return None
    return _CudaDevice(device.index)
