"""The address at which the ranks of a process group reach rank 0."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from byteps import _core
from byteps.config_reader import LOOPBACK
from byteps.errors import InvalidArgumentError

__all__ = ["is_literal_loopback", "listen", "reachable_host"]

_BACKLOG = 1024  # all ranks of a group may connect at once


def reachable_host(store: Store, environ: Mapping[str, str]) -> str:
    """Returns a name or address of this machine that the ranks that share `store` can reach."""
    interface, node_host = environ.get("DMLC_INTERFACE", ""), environ.get("DMLC_NODE_HOST", "")
    meeting_point = _host_of(store)
    # A store in a file or in memory: one machine, unless the environment differs.
    if not meeting_point:
        return node_host or LOOPBACK
    if not interface and not node_host and _is_here(meeting_point):
        return meeting_point  # all ranks have reached the store there
    return _core.listen_address(interface, node_host, meeting_point)


def listen(host: str) -> socket.socket:
    """Returns a socket that listens on a free port of `host`.

    Raises:
        InvalidArgumentError: `host` is not a name or address of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        # Only this machine may resolve its name to a loopback address.
        if not is_literal_loopback(host):
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
    """Whether `host` is "localhost" or a loopback address. Does not resolve names."""
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
