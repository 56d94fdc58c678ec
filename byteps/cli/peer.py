"""`byteps doctor --listen` and `--peer`: check whether two machines reach each other."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from byteps.cli.finding import Finding, State
from byteps.config import Config
from byteps.errors import BytePSError, InvalidArgumentError, PeerLostError, TimeoutError

if TYPE_CHECKING:
    from byteps import _core

_OUTSIDE = "192.0.2.1"  # an address outside (RFC 5737), to which nothing is sent
_LARGEST_PORT = 65535


def listen(config: Config, where: str) -> int:
    """Answers `byteps doctor --peer` of other machines.

    Ends at Ctrl-C, or if nobody connects for BYTEPS_START_TIMEOUT_S.

    Args:
        config: the settings.
        where: such as "9000" or "10.0.0.1:9000".

    Returns:
        The exit code: 0 after Ctrl-C or if somebody has connected.
    """
    from byteps import _core

    host, port = split(where, needs_host=False)
    listener = _core.PeerListener(config.to_node_config(), _own_address(config, host), port)
    print(f"listening: run on another machine: byteps doctor --peer {listener.address}", flush=True)
    if listener.why_no_rdma:
        print(f"listening by TCP only: {listener.why_no_rdma}", flush=True)
    code = int(config.transport == "rdma" and bool(listener.why_no_rdma))
    has_answered = False
    try:
        while True:
            print(listener.next(config.start_timeout_s), flush=True)
            has_answered = True
    except TimeoutError:
        print(f"nobody has connected for {config.start_timeout_s:g} s (BYTEPS_START_TIMEOUT_S)", flush=True)
        return code | int(not has_answered)
    except KeyboardInterrupt:
        return code


def check(config: Config, where: str) -> list[Finding]:
    """Checks the connection to a machine on which `byteps doctor --listen` runs."""
    host, port = split(where, needs_host=True)
    try:
        return list(_check(config, where, host, port))
    except BytePSError as error:
        return [Finding(f"peer {where}", "wrong", f"not reachable by TCP: {error}")]


def _check(config: Config, where: str, host: str, port: int) -> Iterator[Finding]:
    from byteps import _core

    address = _resolve(host)
    text = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    own = _core.listen_address(config.interface, config.node_host, address)
    report = _core.check_peer(config.to_node_config(), own, text)
    yield Finding(f"peer {where}", "ok", f"{report['host']} by TCP from {own}: {_describe(report['tcp'])}")
    topic = f"peer {where} by RDMA"
    if report["why_no_rdma"]:
        state: State = "note" if report["rdma_is_absent"] and config.transport != "rdma" else "wrong"
        yield Finding(topic, state, f"not tried: {report['why_no_rdma']}")
    for rail in report["rails"]:
        if rail["failure"]:
            yield Finding(topic, "wrong", f"{rail['own']}: {rail['failure']}")
        else:
            yield Finding(topic, "ok", f"{rail['own']} to {rail['other']}: {_describe(rail)}")


def _describe(speed: _core.PeerSpeed | _core.PeerRail) -> str:
    gbits = speed["bytes_per_s"] * 8 / 1e9
    return f"round trip {speed['round_trip_us']:.0f} us, about {gbits:.2g} Gbit/s in each direction on one connection"


def _own_address(config: Config, host: str) -> str:
    from byteps import _core

    if host:
        return _resolve(host)
    # Without a secret only this machine may connect.
    outside = _OUTSIDE if config.secret else "127.0.0.1"
    return _core.listen_address(config.interface, config.node_host, config.scheduler_host or outside)


def _resolve(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise PeerLostError(f"{host}: {error.strerror}") from error
    return str(found[0][4][0])


def split(where: str, *, needs_host: bool) -> tuple[str, int]:
    """Splits host and port: "10.0.0.1:9000" -> ("10.0.0.1", 9000), "9000" -> ("", 9000).

    Raises:
        InvalidArgumentError: other text.
    """
    host, colon, port = where.rpartition(":")
    has_host = bool(host) if colon else not needs_host
    if has_host and port.isascii() and port.isdigit() and int(port) <= _LARGEST_PORT:
        return host.removeprefix("[").removesuffix("]"), int(port)
    expected = "HOST:PORT" if needs_host else "[HOST:]PORT"
    raise InvalidArgumentError(f"{where!r}: expected {expected}, a port from 0 to {_LARGEST_PORT}")
