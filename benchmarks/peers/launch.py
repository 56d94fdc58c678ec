"""Makes contenders: each library's own way to start n ranks at a place."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.contender import Contender, Started
from benchmarks.peers.places import ROOT, OnHosts, Place, base_environment, popen

_SUM_RANK = [sys.executable, "-m", "benchmarks.peers.sum_rank"]
_gloo_ports = itertools.count(29400)
_grpc_ports = itertools.count(28400)
_ps_lite_ports = itertools.count(27400)
_MXNET_PYTHON = ROOT / ".venv" / "mxnet" / "bin" / "python"  # tools/bootstrap.sh bench makes it


def byteps(
    place: Place,
    name: str = "byteps",
    settings: Mapping[str, str] | None = None,
    program: Sequence[str] = (*_SUM_RANK, "byteps"),
) -> Contender:
    """Ours, with the given settings."""

    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        environments = place.byteps_environments(settings or {})
        processes = []
        for index, environment in enumerate(environments):
            command = list(program) if index < place.ranks else [sys.executable, "-m", "byteps.server"]
            processes.append(popen(place, index, command, environment | base_environment() | extra, output))
        return Started(processes, place.ranks, processes[place.ranks :])

    return Contender(name, spawn)


def gloo(place: Place, name: str = "gloo") -> Contender:
    """torch.distributed's, which takes a ring for all but small tensors."""

    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        shared = {
            **base_environment(),
            **extra,
            "GLOO_SOCKET_IFNAME": place.interface,
            "BENCH_STORE": f"tcp://{place.address(0)}:{next(_gloo_ports)}",
            "BENCH_SIZE": str(place.ranks),
        }
        processes = [
            popen(place, rank, [*_SUM_RANK, "gloo"], shared | {"BENCH_RANK": str(rank)}, output)
            for rank in range(place.ranks)
        ]
        return Started(processes, place.ranks)

    return Contender(name, spawn)


def training(place: Place, method: str, name: str, settings: Mapping[str, str] | None = None) -> Contender:
    """Ranks that train, as train_rank.py does by `method`; byteps has its servers where the place has some."""

    def environment(_: int) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": place.interface, "BENCH_STORE": store}

    store = f"tcp://{place.address(0)}:{next(_gloo_ports)}"
    command = [sys.executable, "-m", "benchmarks.peers.train_rank", method]
    return _training(place, command, name, environment, settings or {}, servers=method != "ddp-gloo")


def keras_training(place: Place, method: str, name: str, settings: Mapping[str, str] | None = None) -> Contender:
    """Ranks that train, as keras_rank.py does by `method`; byteps has its servers where the place has some."""
    addresses = [place.address(rank) for rank in range(place.ranks)]
    workers = [f"{address}:{next(_grpc_ports)}" for address in addresses]
    strategy = method.startswith("mwms")

    def environment(rank: int) -> dict[str, str]:
        if not strategy:
            return {}
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        return {"TF_CONFIG": json.dumps(cluster), "no_grpc_proxy": ",".join(addresses)}

    command = [sys.executable, "-m", "benchmarks.peers.keras_rank", method]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "1", "KERAS_BACKEND": "tensorflow"}
    return _training(place, command, name, environment, quiet | dict(settings or {}), servers=not strategy)


def mxnet_training(place: Place, method: str, name: str, settings: Mapping[str, str] | None = None) -> Contender:
    """Ranks that train, as mxnet_rank.py does by one of byteps's methods or `nothing`."""
    return _training(place, _mxnet_rank(method), name, lambda _: {}, settings or {}, servers=True)


def mxnet_store(
    place: Place, method: str, name: str, servers: int, settings: Mapping[str, str] | None = None
) -> Contender:
    """Ranks that train, as mxnet_rank.py does by one of MXNet's own stores, with so many servers of its."""

    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        shared = {
            **base_environment(),
            **(settings or {}),
            "DMLC_PS_ROOT_URI": place.address(0),
            "DMLC_PS_ROOT_PORT": port,
            "DMLC_NUM_WORKER": str(place.ranks),
            "DMLC_NUM_SERVER": str(servers),
            "BENCH_SIZE": str(place.ranks),
        }

        def start(role: str, index: int, own: Mapping[str, str]) -> subprocess.Popen[Any]:
            member = {"DMLC_ROLE": role, "DMLC_NODE_HOST": place.address(index)}
            return popen(place, index, _mxnet_rank(method), shared | member | own, output)

        ranks = [start("worker", rank, {**extra, "BENCH_RANK": str(rank)}) for rank in range(place.ranks)]
        others = [start("scheduler", 0, {})]
        others += [start("server", place.ranks + index, {}) for index in range(servers)]
        return Started(ranks + others, place.ranks, others)

    port = str(next(_ps_lite_ports))
    return Contender(name, spawn)


def _mxnet_rank(method: str) -> list[str]:
    return [str(_MXNET_PYTHON), "-m", "benchmarks.peers.mxnet_rank", method]


def _training(
    place: Place,
    command: Sequence[str],
    name: str,
    environment: Callable[[int], Mapping[str, str]],
    settings: Mapping[str, str],
    *,
    servers: bool,
) -> Contender:
    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        ours = place.byteps_environments(settings)
        shared = base_environment() | extra | {"BENCH_SIZE": str(place.ranks)}
        processes = [
            popen(place, rank, command, {**ours[rank], **shared, **environment(rank), "BENCH_RANK": str(rank)}, output)
            for rank in range(place.ranks)
        ]
        if servers:
            processes += [
                popen(place, index, [sys.executable, "-m", "byteps.server"], ours[index] | base_environment(), output)
                for index in range(place.ranks, len(ours))
            ]
        return Started(processes, place.ranks, processes[place.ranks :])

    return Contender(name, spawn)


_RING = {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_allreduce_algorithm": "4"}
_TCP = {"btl": "tcp,self", "pml": "ob1"}


def openmpi(place: Place, name: str = "openmpi", *, ring: bool = True, tcp: bool | None = None) -> Contender:
    """OpenMPI by its own mpirun, which enters the lab's hosts as it would log into machines.

    Args:
        place: the ranks' hosts.
        name: of the contender.
        ring: force the ring; OpenMPI's own choice takes twice its time on networks.
        tcp: its TCP transport only; None: in a lab.
    """

    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        options = (_RING if ring else {}) | (_TCP if tcp or (tcp is None and isinstance(place, OnHosts)) else {})
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(place.ranks), "--bind-to", "none"]
        if isinstance(place, OnHosts):
            hosts = ",".join(f"{host.address}:1" for host in place.lab.hosts[: place.ranks])
            command += ["--host", hosts]
            options |= {
                "plm_rsh_agent": _write_login(place, Path(extra["BENCH_CONTROL"]).parent),
                "plm_rsh_no_tree_spawn": "1",
                "btl_tcp_if_include": place.interface,
                "oob_tcp_if_include": place.interface,
            }
        for key, value in options.items():
            command += ["--mca", key, value]
        for variable in ("PYTHONPATH", "OMP_NUM_THREADS", *extra):
            command += ["-x", variable]
        process = popen(place, 0, [*command, *_SUM_RANK, "openmpi"], base_environment() | extra, output)
        return Started([process], place.ranks)

    return Contender(name, spawn)


def _write_login(place: OnHosts, folder: Path) -> str:
    """What mpirun calls instead of ssh: `login ADDRESS COMMAND...` runs the command on that host of the lab."""
    cases = "".join(
        f'  {host.address}) exec {shlex.join(place.lab.enter_command(host.number))} sh -c "$*" ;;\n'
        for host in place.lab.hosts
    )
    script = folder / "login"
    script.write_text(f'#!/bin/sh\nhost=$1\nshift\ncase "$host" in\n{cases}esac\nexit 1\n')
    script.chmod(0o700)
    return str(script)


def memory(place: Place, how: str) -> Contender:
    """No library: what memory_rank.py does; `how` is "copy" or "in place"."""
    return _without_library(place, f"memory, {how}", "benchmarks.peers.memory_rank", {"BENCH_HOW": how})


def wake_ups(place: Place, name: str) -> Contender:
    """No library: what wake_up_rank.py does, with two ranks."""
    return _without_library(place, name, "benchmarks.peers.wake_up_rank", {})


def _without_library(place: Place, name: str, module: str, settings: Mapping[str, str]) -> Contender:
    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        shared = base_environment() | extra | settings
        command = [sys.executable, "-m", module]
        processes = [
            popen(place, rank, command, shared | {"BENCH_RANK": str(rank)}, output) for rank in range(place.ranks)
        ]
        return Started(processes, place.ranks)

    return Contender(name, spawn)
