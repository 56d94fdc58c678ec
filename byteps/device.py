"""push_pulls of tensors in the memory of devices, for all adapters."""

from __future__ import annotations

from typing import Protocol

from byteps import _core

__all__ = ["Device", "Transfer"]


class Device(Protocol):
    """A device, as an adapter knows it."""

    index: int  # among the CUDA devices that the process sees

    def current_stream(self) -> int:
        """Returns the stream, as a CUstream, that the calling thread gives its work to."""
        ...


class Transfer:
    """The order of one push_pull among the work of a device's streams."""

    __slots__ = ("_device", "core")

    def __init__(self, device: Device, core: _core.Transfer | None = None) -> None:
        """The push_pull comes after what the calling thread has given its stream so far.

        `core`: has been made already.
        """
        self._device = device
        self.core = core or _core.Transfer(device.index, device.current_stream())

    def order(self) -> None:
        """What the calling thread gives its stream from now on comes after the push_pull.

        To be called when the push_pull's handle is done.
        """
        self.core.order_before(self._device.current_stream())

    def is_complete(self) -> bool:
        """Whether no copy uses the tensors any more. To be called when the handle is done."""
        return self.core.is_complete()
