"""`byteps doctor`: shows the abilities of this machine and checks the settings.

Exits with 1 if something is wrong.

With --listen on one machine and --peer on another it also checks whether they reach each other, by
TCP and by RDMA.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from byteps.cli import peer, rdma
from byteps.cli.finding import Finding, State
from byteps.cli.table import format_table
from byteps.config import Config, process_environment
from byteps.config_reader import Reader
from byteps.errors import BytePSError
from byteps.launcher.topology import read_machine

_FEW_FILES = 1024  # a process has a few connections to every other process
_FRAMEWORKS = ("numpy", "torch")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="check this machine and the settings", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--listen", metavar="[HOST:]PORT", help="wait for byteps doctor --peer of other machines")
    ends.add_argument(
        "--peer", metavar="HOST:PORT", help="check the connection to a machine on which byteps doctor listens"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    environ = process_environment()
    findings = examine(environ)
    if arguments.peer and _is_usable(environ):
        findings += peer.check(Config.parse(environ), arguments.peer)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print(format_table([(finding.topic, finding.state, finding.text) for finding in findings]))
    code = int(any(finding.state == "wrong" for finding in findings))
    if arguments.listen and _is_usable(environ):
        code |= peer.listen(Config.parse(environ), arguments.listen)
    return code


def _is_usable(environ: dict[str, str]) -> bool:
    return not Reader(environ, Config.knobs()).faults


def examine(environ: dict[str, str]) -> list[Finding]:
    """Returns all findings; failed checks are findings, too."""
    return [*_machine(), *_limits(), *_frameworks(), *_core_abilities(), *_settings(environ)]


def _machine() -> Iterator[Finding]:
    machine = read_machine(frozenset(os.sched_getaffinity(0)))
    usable = sum(len(node) for node in machine.nodes)
    yield Finding(
        "machine", "ok", f"{socket.gethostname()}, {platform.system()} {platform.release()} {platform.machine()}"
    )
    yield Finding("cores", "ok", f"{machine.cores} ({usable} logical) on {len(machine.nodes)} NUMA node(s)")


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    state: State = "note" if 0 <= soft < _FEW_FILES else "ok"
    advice = "" if state == "ok" else f": large jobs need more, such as ulimit -n {hard if hard > 0 else 65536}"
    yield Finding("open files", state, f"{soft if soft >= 0 else 'unlimited'}{advice}")
    try:
        shm = os.statvfs("/dev/shm")
        yield Finding(
            "/dev/shm", "ok", f"{shm.f_bavail * shm.f_frsize >> 20} MiB free (data loaders use it, byteps does not)"
        )
    except OSError as error:
        yield Finding("/dev/shm", "note", f"{error.strerror} (data loaders use it, byteps does not)")


def _frameworks() -> Iterator[Finding]:
    yield Finding("python", "ok", platform.python_version())
    for name in ("byteps", *_FRAMEWORKS):
        try:
            yield Finding(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "note", "not installed")


def _core_abilities() -> Iterator[Finding]:
    try:
        from byteps import _core
    except ImportError as error:
        yield Finding("native module", "wrong", f"{error}: expected byteps to be installed with pip install")
        return
    yield Finding("instructions", "ok", ", ".join(name for name, there in _core.isa_levels().items() if there))
    for name, reason in _core.viable_transports().items():
        yield Finding(f"transport {name}", "note" if reason else "ok", reason or "usable")
    yield from _devices()


def _devices() -> Iterator[Finding]:
    from byteps import _core

    try:
        version, devices = _core.cuda_version(), _core.cuda_devices()
    except BytePSError as error:
        yield Finding("GPUs", "note", str(error))
        return
    driver = f"CUDA {version // 1000}.{version % 1000 // 10}"
    for number, (name, address) in enumerate(devices):
        near = _read(f"/sys/bus/pci/devices/{address.lower()}/numa_node")
        node = f", NUMA node {near}" if near not in ("", "-1") else ""
        yield Finding(f"GPU {number}", "ok", f"{name}, PCI {address}{node}; {driver}; tensors go through pinned memory")


def _read(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except OSError:
        return ""


def _settings(environ: dict[str, str]) -> Iterator[Finding]:
    reader = Reader(environ, Config.knobs())
    for fault in reader.faults:
        yield Finding("settings", "wrong", fault)
    for warning in reader.warnings:
        yield Finding("settings", "note", warning)
    if reader.faults:
        return
    config = Config.parse(environ)
    yield Finding("settings", "ok", _job_in_words(config))
    try:
        yield from _network(config)
    except BytePSError as error:
        yield Finding("address", "wrong", str(error))
    except ImportError:  # reported already
        return


def _job_in_words(config: Config) -> str:
    if config.is_single_process:
        return "a single worker: no launcher was detected, and no setting names other processes"
    who = f"worker {config.rank} of {config.size}" if config.role == "worker" else config.role
    return f"{who}, {config.num_servers} server(s), by {config.sources['size']}"


def _network(config: Config) -> Iterator[Finding]:
    from byteps import _core

    host = config.scheduler_host or "127.0.0.1"
    address = _core.listen_address(config.interface, config.node_host, host)
    yield Finding("address", "ok", f"{address} is advertised, to reach {host}")
    interface, mbps = _core.network_interface(address)
    interface = interface or "no interface of this machine"
    if config.nic_mbps:
        yield Finding("network card", "ok", f"{interface}, {config.nic_mbps:g} Mbit/s, by BYTEPS_NIC_MBPS")
    elif mbps:
        yield Finding("network card", "ok", f"{interface}, {mbps:g} Mbit/s, by the kernel")
    elif config.nic_probe:
        text = "the kernel does not know its speed, which a job of several machines measures when it starts"
        yield Finding("network card", "ok", f"{interface}, {text}; BYTEPS_NIC_MBPS avoids the measurement")
    else:
        advice = "the mean of the others is used; set BYTEPS_NIC_MBPS if machines differ"
        yield Finding("network card", "note", f"{interface}, speed unknown and not measured: {advice}")
    yield from rdma.examine(config, address)
