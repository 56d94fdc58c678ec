"""Makes contenders: how each library starts n ranks on a testbed."""

from __future__ import annotations

import functools
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.contender import Contender, Started
from benchmarks.peers.testbeds import ROOT, Cores, OnHosts, Testbed, base_environment, popen

_SUM_RANK = [sys.executable, "-m", "benchmarks.peers.sum_rank"]
_C10D_RANK = [sys.executable, "-m", "benchmarks.peers.c10d_rank"]
_PLAIN = ROOT / "benchmarks" / "peers"
_store_ports = itertools.count(29400)
_grpc_ports = itertools.count(28400)
_ps_lite_ports = itertools.count(27400)
_MXNET_PYTHON = ROOT / ".venv" / "mxnet" / "bin" / "python"  # tools/bootstrap.sh bench makes it


def byteps(
    testbed: Testbed,
    name: str = "byteps",
    settings: Mapping[str, str] | None = None,
    program: Sequence[str] = (*_SUM_RANK, "byteps"),
    *,
    plain: bool = True,
) -> Contender:
    """Ours, with the given settings; a program other than the default one has no plain loop."""

    def start(command: Sequence[str], extra: Mapping[str, str], output: Any) -> Started:
        environments = testbed.byteps_environments(settings or {})
        processes = []
        for index, environment in enumerate(environments):
            argv = command if index < testbed.ranks else [sys.executable, "-m", "byteps.server"]
            processes.append(popen(testbed, index, argv, environment | base_environment() | extra, output))
        return Started(processes, testbed.ranks, processes[testbed.ranks :])

    def spawn_plain(request: Mapping[str, Any], turns: int, output: Any) -> Started:
        return start(_plain_loop("plain_byteps.py", request, turns, [str(request.get("tensors", 1))]), {}, output)

    has_plain = plain and program == (*_SUM_RANK, "byteps")
    return Contender(name, functools.partial(start, program), spawn_plain if has_plain else None)


def gloo(testbed: Testbed, name: str = "gloo") -> Contender:
    """torch.distributed's, which takes a ring for all but small tensors."""
    return _torch_distributed(testbed, name, "gloo", [*_SUM_RANK, "gloo"])


def sockets(testbed: Testbed) -> Contender:
    """Plain TCP, whose sums are what the network allows without a protocol (libraries.py)."""
    port = next(_store_ports)
    addresses = ",".join(f"{testbed.address(rank)}:{port + rank}" for rank in range(testbed.ranks))

    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        shared = {**base_environment(), **extra, "BENCH_ADDRESSES": addresses}
        processes = [
            popen(testbed, rank, [*_SUM_RANK, "sockets"], shared | {"BENCH_RANK": str(rank)}, output)
            for rank in range(testbed.ranks)
        ]
        return Started(processes, testbed.ranks)

    return Contender("plain sockets", spawn)


def c10d(testbed: Testbed, backend: str, name: str) -> Contender:
    """Ranks of c10d_rank.py with a backend of torch.distributed."""
    return _torch_distributed(testbed, name, backend, [*_C10D_RANK, backend])


def _torch_distributed(testbed: Testbed, name: str, backend: str, program: Sequence[str]) -> Contender:
    def start(command: Sequence[str], extra: Mapping[str, str], output: Any) -> Started:
        shared = {
            **base_environment(),
            **extra,
            "DMLC_INTERFACE": testbed.interface,
            "GLOO_SOCKET_IFNAME": testbed.interface,
            "BENCH_STORE": f"tcp://{testbed.address(0)}:{next(_store_ports)}",
            "BENCH_SIZE": str(testbed.ranks),
        }
        processes = [
            popen(testbed, rank, command, shared | {"BENCH_RANK": str(rank)}, output) for rank in range(testbed.ranks)
        ]
        return Started(processes, testbed.ranks)

    def spawn_plain(request: Mapping[str, Any], turns: int, output: Any) -> Started:
        what = [backend, request.get("collective", "all_reduce"), str(request.get("tensors", 1))]
        return start(_plain_loop("plain_c10d.py", request, turns, what), {}, output)

    return Contender(name, functools.partial(start, program), spawn_plain)


def _plain_loop(file: str, request: Mapping[str, Any], turns: int, first: Sequence[str] = ()) -> list[str]:
    return [sys.executable, str(_PLAIN / file), *first, str(request["bytes"]), str(request["calls"]), str(turns)]


def training(testbed: Testbed, method: str, name: str, settings: Mapping[str, str] | None = None) -> Contender:
    """Ranks of train_rank.py with `method`. byteps uses the servers of the testbed."""

    def environment(_: int) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": testbed.interface, "BENCH_STORE": store}

    store = f"tcp://{testbed.address(0)}:{next(_store_ports)}"
    command = [sys.executable, "-m", "benchmarks.peers.train_rank", method]
    return _training(testbed, command, name, environment, settings or {}, servers=method != "ddp-gloo")


def keras_training(testbed: Testbed, method: str, name: str, settings: Mapping[str, str] | None = None) -> Contender:
    """Ranks of keras_rank.py with `method`. byteps uses the servers of the testbed."""
    addresses = [testbed.address(rank) for rank in range(testbed.ranks)]
    workers = [f"{address}:{next(_grpc_ports)}" for address in addresses]
    strategy = method.startswith("mwms")

    def environment(rank: int) -> dict[str, str]:
        if not strategy:
            return {}
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        return {"TF_CONFIG": json.dumps(cluster), "no_grpc_proxy": ",".join(addresses)}

    command = [sys.executable, "-m", "benchmarks.peers.keras_rank", method]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "1", "KERAS_BACKEND": "tensorflow"}
    return _training(testbed, command, name, environment, quiet | dict(settings or {}), servers=not strategy)


def mxnet_training(testbed: Testbed, method: str, name: str, settings: Mapping[str, str] | None = None) -> Contender:
    """Ranks of mxnet_rank.py with one of MXNet's own stores and this number of servers."""
    return _training(testbed, _mxnet_rank(method), name, lambda _: {}, settings or {}, servers=True)


def mxnet_store(
    testbed: Testbed, method: str, name: str, servers: int, settings: Mapping[str, str] | None = None
) -> Contender:
    """Ranks of mxnet_rank.py with one of MXNet's own stores and this number of servers."""

    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        shared = {
            **base_environment(),
            **(settings or {}),
            "DMLC_PS_ROOT_URI": testbed.address(0),
            "DMLC_PS_ROOT_PORT": port,
            "DMLC_NUM_WORKER": str(testbed.ranks),
            "DMLC_NUM_SERVER": str(servers),
            "BENCH_SIZE": str(testbed.ranks),
        }

        def start(role: str, index: int, own: Mapping[str, str]) -> subprocess.Popen[Any]:
            member = {"DMLC_ROLE": role, "DMLC_NODE_HOST": testbed.address(index)}
            return popen(testbed, index, _mxnet_rank(method), shared | member | own, output)

        ranks = [start("worker", rank, {**extra, "BENCH_RANK": str(rank)}) for rank in range(testbed.ranks)]
        others = [start("scheduler", 0, {})]
        others += [start("server", testbed.ranks + index, {}) for index in range(servers)]
        return Started(ranks + others, testbed.ranks, others)

    port = str(next(_ps_lite_ports))
    return Contender(name, spawn)


def _mxnet_rank(method: str) -> list[str]:
    return [str(_MXNET_PYTHON), "-m", "benchmarks.peers.mxnet_rank", method]


def _training(
    testbed: Testbed,
    command: Sequence[str],
    name: str,
    environment: Callable[[int], Mapping[str, str]],
    settings: Mapping[str, str],
    *,
    servers: bool,
) -> Contender:
    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        ours = testbed.byteps_environments(settings)
        shared = base_environment() | extra | {"BENCH_SIZE": str(testbed.ranks)}
        processes = [
            popen(
                testbed, rank, command, {**ours[rank], **shared, **environment(rank), "BENCH_RANK": str(rank)}, output
            )
            for rank in range(testbed.ranks)
        ]
        if servers:
            processes += [
                popen(testbed, index, [sys.executable, "-m", "byteps.server"], ours[index] | base_environment(), output)
                for index in range(testbed.ranks, len(ours))
            ]
        return Started(processes, testbed.ranks, processes[testbed.ranks :])

    return Contender(name, spawn)


_RING = {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_allreduce_algorithm": "4"}
_TCP = {"btl": "tcp,self", "pml": "ob1"}


def openmpi(testbed: Testbed, name: str = "openmpi", *, ring: bool = True, tcp: bool | None = None) -> Contender:
    """OpenMPI by its own mpirun, which enters the lab's hosts as it would log into machines.

    Args:
        testbed: the hosts of the ranks.
        name: of the contender.
        ring: force the ring; OpenMPI's own choice takes twice its time on networks.
        tcp: its TCP transport only; None: in a lab.
    """

    def start(command: Sequence[str], extra: Mapping[str, str], output: Any, folder: Path) -> Started:
        options = (_RING if ring else {}) | (_TCP if tcp or (tcp is None and isinstance(testbed, OnHosts)) else {})
        own_cores = testbed.cores is Cores.OWN  # mpirun gives them to its ranks
        binding = "core" if own_cores else "none"
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(testbed.ranks), "--bind-to", binding]
        if isinstance(testbed, OnHosts):
            hosts = ",".join(f"{host.address}:1" for host in testbed.lab.hosts[: testbed.ranks])
            mpirun += ["--host", hosts]
            options |= {
                "plm_rsh_agent": _write_login(testbed, folder),
                "plm_rsh_no_tree_spawn": "1",
                "btl_tcp_if_include": testbed.interface,
                "oob_tcp_if_include": testbed.interface,
            }
        for key, value in options.items():
            mpirun += ["--mca", key, value]
        for variable in ("PYTHONPATH", "OMP_NUM_THREADS", *extra):
            mpirun += ["-x", variable]
        process = popen(testbed, 0, [*mpirun, *command], base_environment() | extra, output, pinned=not own_cores)
        return Started([process], testbed.ranks)

    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        return start([*_SUM_RANK, "openmpi"], extra, output, Path(extra["BENCH_CONTROL"]).parent)

    def spawn_plain(request: Mapping[str, Any], turns: int, output: Any) -> Started:
        return start(_plain_loop("plain_openmpi.py", request, turns), {}, output, Path(output.name).parent)

    return Contender(name, spawn, spawn_plain)


def _write_login(testbed: OnHosts, folder: Path) -> str:
    """Writes a replacement of ssh for mpirun: `login ADDRESS COMMAND...`."""
    cases = "".join(
        f'  {host.address}) exec {shlex.join(testbed.lab.enter_command(host.number))} sh -c "$*" ;;\n'
        for host in testbed.lab.hosts
    )
    script = folder / "login"
    script.write_text(f'#!/bin/sh\nhost=$1\nshift\ncase "$host" in\n{cases}esac\nexit 1\n')
    script.chmod(0o700)
    return str(script)


def memory(testbed: Testbed, how: str) -> Contender:
    """Ranks of memory_rank.py, without a library; `how` is "copy" or "in place"."""
    return _without_library(testbed, f"memory, {how}", "benchmarks.peers.memory_rank", {"BENCH_HOW": how})


def copies(testbed: Testbed, name: str) -> Contender:
    """Ranks of copies_rank.py, without a library."""
    return _without_library(testbed, name, "benchmarks.peers.copies_rank", {"BENCH_SIZE": str(testbed.ranks)})


def wake_ups(testbed: Testbed, name: str) -> Contender:
    """Two ranks of wake_up_rank.py, without a library."""
    return _without_library(testbed, name, "benchmarks.peers.wake_up_rank", {})


def _without_library(testbed: Testbed, name: str, module: str, settings: Mapping[str, str]) -> Contender:
    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        shared = base_environment() | extra | settings
        command = [sys.executable, "-m", module]
        processes = [
            popen(testbed, rank, command, shared | {"BENCH_RANK": str(rank)}, output) for rank in range(testbed.ranks)
        ]
        return Started(processes, testbed.ranks)

    return Contender(name, spawn)
