"""Compares RDMA devices in sysfs with those that pyverbs (libibverbs and its drivers) lists."""

from __future__ import annotations

import importlib
import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from byteps.cli.finding import Finding

if TYPE_CHECKING:
    from byteps import _core

_TOPIC = "rdma pyverbs"
_MOST_GIDS = 1024
_KINDS = {"InfiniBand": 0, "RoCE v1": 1, "RoCE v2": 2}  # enum ibv_gid_type


def examine(ports: list[_core.RdmaPort]) -> Iterator[Finding]:
    """Compares `ports` with pyverbs, and yields facts that only pyverbs knows."""
    try:
        device = importlib.import_module("pyverbs.device")
        errors: Any = importlib.import_module("pyverbs.pyverbs_error").PyverbsError
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError)
        yield Finding(_TOPIC, "ok", f"{'not installed' if absent else f'cannot be imported: {error}'} (not needed)")
        return
    try:
        names = {entry.name.decode() for entry in device.get_device_list()}
    except errors as error:
        yield Finding(_TOPIC, "note", f"does not list devices: {error}")
        return
    wanted = {port["device"] for port in ports}
    if missing := sorted(wanted - names):
        text = "in sysfs, but libibverbs has no driver for it: apt-get install ibverbs-providers (Debian, Ubuntu)"
        yield Finding(_TOPIC, "note", f"{', '.join(missing)}: {text}")
    for name in sorted(wanted & names):
        try:
            with device.Context(name=name) as context:
                yield _compare(name, context, [port for port in ports if port["device"] == name])
        except errors as error:
            yield Finding(_TOPIC, "note", f"{name}: {error}")
        except AttributeError as error:  # another release of pyverbs
            yield Finding(_TOPIC, "note", f"{name}: unexpected release of pyverbs: {error}")


def _compare(name: str, context: Any, ports: list[_core.RdmaPort]) -> Finding:
    seen = {
        (entry.port_num, entry.gid_index, ipaddress.IPv6Address(entry.gid_str()), entry.gid_type)
        for entry in context.query_gid_table(_MOST_GIDS)
    }
    told = {
        (port["port"], gid["index"], ipaddress.IPv6Address(gid["gid"]), _KINDS[gid["kind"]])
        for port in ports
        for gid in port["gids"]
    }
    if seen != told:
        text = f"{len(seen)} GIDs, of which {len(seen & told)} are in sysfs: is one of them being changed?"
        return Finding(_TOPIC, "note", f"{name}: {text}")
    known = context.query_device()
    firmware = f"firmware {known.fw_version}, " if known.fw_version else ""
    limits = f"at most {known.max_qp} queue pairs and {known.max_mr} memory regions"
    return Finding(_TOPIC, "ok", f"{name}: the same GIDs ({len(told)}); {firmware}{limits}")
