"""Testbeds, on which the ranks of a contender run: hosts of a lab, or one host."""

from __future__ import annotations

import enum
import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.lab import Host, Lab
from benchmarks.lab.job import LabJob, foreign_environment, local_environments
from benchmarks.lab.lab import INTERFACE

ROOT = Path(__file__).resolve().parents[2]
_ports = itertools.count(7400)  # a port for each job; hosts of a lab have no other listeners


class Cores(enum.Enum):
    """Which cores the processes may use. Wake-ups between cores cost more than on one."""

    ANY = "any cores"
    OWN = "a core each"
    ONE = "all on one core"
    SERVERS_APART = "workers on one core, servers on another"


class Testbed(Protocol):
    """A testbed with n ranks and k servers."""

    lab: Lab
    ranks: int
    servers: int
    interface: str
    cores: Cores

    def host_of(self, index: int) -> Host:
        """Returns the host of rank `index`, or, from n on, of a server."""

    def address(self, rank: int) -> str:
        """Returns the address by which other ranks reach `rank`."""

    def byteps_environments(self, settings: Mapping[str, str]) -> list[dict[str, str]]:
        """Returns the environments of the ranks and servers of a new job of byteps."""


class OnHosts:
    """Hosts of a lab: a rank on each of the first, then a server on each of the next ones."""

    interface = INTERFACE

    def __init__(self, lab: Lab, ranks: int, servers: int = 0, cores: Cores = Cores.ANY) -> None:
        _check(cores, ranks)
        self.cores = cores
        self.lab = lab
        self.ranks = ranks
        self.servers = servers

    def host_of(self, index: int) -> Host:
        return self.lab.hosts[index]

    def address(self, rank: int) -> str:
        return self.lab.hosts[rank].address

    def byteps_environments(self, settings: Mapping[str, str]) -> list[dict[str, str]]:
        job = LabJob(self.lab, self.ranks, self.servers, settings, next(_ports))
        return [job.environment(self.lab.hosts[index]) for index in range(self.ranks + self.servers)]


class OnOneHost:
    """All ranks on one host of a lab, whose network limits do not apply to the loopback."""

    interface = "lo"
    servers = 0

    def __init__(self, lab: Lab, ranks: int, cores: Cores = Cores.ANY) -> None:
        _check(cores, ranks)
        self.lab = lab
        self.ranks = ranks
        self.cores = cores

    def host_of(self, _: int) -> Host:
        return self.lab.hosts[0]

    def address(self, _: int) -> str:
        return "127.0.0.1"

    def byteps_environments(self, settings: Mapping[str, str]) -> list[dict[str, str]]:
        return local_environments(self.ranks, next(_ports), settings)


def popen(
    testbed: Testbed, index: int, argv: Sequence[str], env: Mapping[str, str], output: Any, *, pinned: bool = True
) -> subprocess.Popen[Any]:
    """Starts a rank or, from n on, a server; by default on the cores that the testbed gives it."""
    return testbed.lab.popen(
        testbed.host_of(index).number,
        [*(pin(testbed, index) if pinned else []), *argv],
        env=dict(env),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def _check(cores: Cores, ranks: int) -> None:
    needed = {Cores.OWN: ranks, Cores.SERVERS_APART: 2}.get(cores, 1)
    if (available := len(os.sched_getaffinity(0))) < needed:
        raise ValueError(f"{cores.value}: expected {needed} cores, got {available}")


def pin(testbed: Testbed, index: int) -> list[str]:
    """Words before the command of a rank or server, which keep it on its core."""
    if testbed.cores is Cores.ANY:
        return []
    number = {Cores.OWN: index, Cores.SERVERS_APART: int(index >= testbed.ranks)}.get(testbed.cores, 0)
    return ["taskset", "-c", str(sorted(os.sched_getaffinity(0))[number])]


def base_environment() -> dict[str, str]:
    """Returns the environment of all ranks: one thread, these sources, no other launcher."""
    return foreign_environment() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
