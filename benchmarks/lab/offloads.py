"""Switches off what a network interface leaves to the hardware, as `ethtool -K` does."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946  # linux/sockios.h
# linux/ethtool.h: ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO
_SEND_COMMANDS = {"checksums": 0x17, "TCP segmentation": 0x1F, "generic segmentation": 0x24}


def send_whole_packets(interface: str) -> None:
    """The kernel gives the interface packets of at most the MTU, with their checksums.

    Applies to the network namespace of the calling thread.

    Raises:
        OSError: the interface does not exist or cannot do it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in _SEND_COMMANDS.values():
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
