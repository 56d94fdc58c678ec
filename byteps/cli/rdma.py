"""The checks of `byteps doctor` for RDMA: devices, the ones that a job would use, and problems.

Problems are notes unless BYTEPS_TRANSPORT requires RDMA, since a job can use TCP.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from byteps.cli import pyverbs_view
from byteps.cli.finding import Finding, State
from byteps.config import Config
from byteps.errors import BytePSError

if TYPE_CHECKING:
    from byteps import _core

_TOPIC = "rdma"
_GIDS_SHOWN = 8
_ETHERNET_MTU = 4200  # for packets of 4096 bytes with headers
_CAP_IPC_LOCK = 1 << 14
_ALL_USERS = ["0", "0", "4294967295"]  # /proc/self/uid_map outside user namespaces


def examine(config: Config, address: str) -> Iterator[Finding]:
    """Yields all findings. Without a device there are none, unless RDMA is required.

    Args:
        config: the settings.
        address: the address that this process advertises.
    """
    from byteps import _core

    bad: State = "wrong" if config.transport == "rdma" else "note"
    ports = _core.rdma_ports()
    if not ports:
        if config.transport == "rdma":
            yield Finding(_TOPIC, bad, "BYTEPS_TRANSPORT is rdma: expected an RDMA device, but this machine has none")
        return
    if config.transport == "tcp":
        yield Finding(_TOPIC, "note", "not used: BYTEPS_TRANSPORT is tcp")
    if why := _core.rdma_library():
        yield Finding(_TOPIC, bad, why)
    for port in ports:
        yield Finding(_name(port), bad if port["why_not"] else "ok", port["why_not"] or _describe(port))
    if not why:
        yield from _rails(config, address, ports, bad)
    yield from pyverbs_view.examine(ports)


def _name(port: _core.RdmaPort) -> str:
    return f"{_TOPIC} {port['device']}:{port['port']}"


def _describe(port: _core.RdmaPort) -> str:
    kind = "RoCE" if port["is_ethernet"] else "InfiniBand"
    on = f" on {port['interface']}" if port["interface"] else ""
    speed = f"{port['mbps'] / 1000:g} Gbit/s" if port["mbps"] else "speed unknown"
    near = f", NUMA node {port['numa_node']}" if port["numa_node"] >= 0 else ""
    gids = [f"{gid['index']}: {gid['gid']} ({gid['kind']})" for gid in port["gids"][:_GIDS_SHOWN]]
    more = len(port["gids"]) - len(gids)
    table = ", ".join(gids) + (f" and {more} more" if more else "")
    return f"{kind}{on}, {port['state']} ({port['physical']}), {speed}{near}, GIDs {table}"


def _rails(config: Config, address: str, ports: list[_core.RdmaPort], bad: State) -> Iterator[Finding]:
    from byteps import _core

    node_config = _core.NodeConfig(**config.node_fields())
    try:
        rails = _core.rdma_rails(node_config, address)
    except BytePSError as error:
        yield Finding(_TOPIC, bad, str(error))
        yield from _locked_memory([], bad)
        return
    by_name = {(port["device"], port["port"]): port for port in ports}
    said_by = "BYTEPS_RDMA_DEVICES" if config.rdma_devices else f"chosen for {address}"
    yield Finding("rdma rails", "ok", ", ".join(f"{device}:{port}" for device, port in rails) + f": {said_by}")
    for key, port in by_name.items():
        if key not in rails and not port["why_not"]:
            yield Finding(_name(port), "ok", f"not used: {_why_not_chosen(config, port, by_name[rails[0]])}")
    trials = []
    for device, number in rails:
        try:
            trials.append(_core.try_rdma_port(node_config, device, number, address))
        except BytePSError as error:
            yield Finding(f"{_TOPIC} {device}:{number}", bad, f"cannot be opened: {error}")
        else:
            yield from _opened(by_name[device, number], trials[-1], bad)
    yield from _locked_memory(trials, bad)


def _why_not_chosen(config: Config, port: _core.RdmaPort, chosen: _core.RdmaPort) -> str:
    if config.rdma_devices:
        return "BYTEPS_RDMA_DEVICES does not name it"
    if port["is_ethernet"] != chosen["is_ethernet"]:
        return f"{chosen['device']} is {'RoCE' if chosen['is_ethernet'] else 'InfiniBand'}, and only one kind is used"
    if port["mbps"] != chosen["mbps"]:
        return f"its speed is not that of {chosen['device']}, which is preferred; set BYTEPS_RDMA_DEVICES to use others"
    return "the others are on the NUMA node of this process; set BYTEPS_RDMA_DEVICES to use others"


def _opened(port: _core.RdmaPort, trial: _core.RdmaTrial, bad: State) -> Iterator[Finding]:
    name = _name(port)
    memory = "memory is paged on demand" if trial["on_demand_paging"] else "memory is locked while it is used"
    yield Finding(name, "ok", f"opened: GID {trial['gid']}, packets of {trial['mtu_bytes']} bytes, {memory}")
    if trial["why_no_connections"]:
        yield Finding(name, bad, trial["why_no_connections"])
    if not port["is_ethernet"]:
        return
    if trial["mtu_bytes"] < 4096:
        link = trial["interface"] or "its interface"
        advice = f"if the network supports it: ip link set {link} mtu {_ETHERNET_MTU}, on all machines and switches"
        yield Finding(name, "note", f"packets of 4096 bytes would be faster; {advice}")
    gid = next((gid for gid in port["gids"] if gid["index"] == trial["gid_index"]), None)
    if gid and gid["gid"].startswith("fe80:"):
        advice = f"ip address add, to {gid['interface'] or 'its interface'}"
        yield Finding(name, "note", f"the GID is link-local, which no router forwards; add an IP address: {advice}")
    elif gid and gid["kind"] == "RoCE v1":
        yield Finding(name, "note", "the GID is of RoCE v1, which no router forwards; all machines need the same kind")


def _locked_memory(trials: list[_core.RdmaTrial], bad: State) -> Iterator[Finding]:
    """Checks the limit of locked memory by the results of the trials."""
    topic = "locked memory"
    refusals = [trial["why_no_memory"] for trial in trials if trial["why_no_memory"]]
    if refusals:
        yield Finding(topic, bad, refusals[0])
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = "no limit" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KiB"
    if limit == resource.RLIM_INFINITY or limit >= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        yield Finding(topic, "ok", text)
    elif _may_lock_anything():
        yield Finding(topic, "ok", f"{text}, which does not limit this process (CAP_IPC_LOCK)")
    elif trials and all(trial["on_demand_paging"] for trial in trials):
        yield Finding(topic, "ok", f"{text}, which is enough: memory is paged on demand")
    else:
        need = "RDMA locks about the size of the model and of the shares that this process's service sums"
        advice = "ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit, or --ulimit memlock=-1 of docker"
        yield Finding(topic, "note", f"{text}: {need}; memory beyond the limit is copied, which is slow: {advice}")


def _may_lock_anything() -> bool:
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        is_first_namespace = Path("/proc/self/uid_map").read_text().split() == _ALL_USERS
    except OSError:
        return False
    return is_first_namespace and bool(int(fields.get("CapEff", "0"), 16) & _CAP_IPC_LOCK)
