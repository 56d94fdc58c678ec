"""Where rank 0 of a process group can be reached by the others."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from byteps import _core
from byteps.config_reader import LOOPBACK
from byteps.errors import InvalidArgumentError

__all__ = ["is_literal_loopback", "listen", "reachable_host"]

_BACKLOG = 1024  # a whole group may connect at once


def reachable_host(store: Store, environ: Mapping[str, str]) -> str:
    """A name or address of this machine for the ranks that share `store`."""
    interface, node_host = environ.get("DMLC_INTERFACE", ""), environ.get("DMLC_NODE_HOST", "")
    meeting_point = _host_of(store)
    if not meeting_point:  # a file or memory: on one machine, unless the environment says more
        return node_host or LOOPBACK
    if not interface and not node_host and _is_here(meeting_point):
        return meeting_point  # where all of them have found the store
    return _core.listen_address(interface, node_host, meeting_point)


def listen(host: str) -> socket.socket:
    """A socket on a free port that accepts what is sent to `host`.

    Raises:
        InvalidArgumentError: that is no name or address.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        if not is_literal_loopback(host):  # this machine's own name may mean a loopback address here, and here only
            address = ("::" if family == socket.AF_INET6 else "0.0.0.0", 0)
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot listen on {host} for the ranks of a process group: {error.strerror}; expected an address of this "
            "machine in DMLC_NODE_HOST, or the name of a network interface in DMLC_INTERFACE"
        ) from error


def _host_of(store: Store) -> str:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else ""


def is_literal_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_here(host: str) -> bool:
    try:
        addresses = [str(info[4][0]) for info in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)]
    except OSError:
        return False
    return any(_core.network_interface(address)[0] for address in addresses)
