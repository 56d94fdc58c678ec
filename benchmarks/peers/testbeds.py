"""Testbeds, on which the ranks of a contender run: hosts of a lab, or one host."""

from __future__ import annotations

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


class Testbed(Protocol):
    """A testbed with n ranks and k servers."""

    lab: Lab
    ranks: int
    servers: int
    interface: str

    def host_of(self, index: int) -> Host:
        """Returns the host of rank `index`, or, from n on, of a server."""

    def address(self, rank: int) -> str:
        """Returns the address by which other ranks reach `rank`."""

    def byteps_environments(self, settings: Mapping[str, str]) -> list[dict[str, str]]:
        """Returns the environments of the ranks and servers of a new job of byteps."""


class OnHosts:
    """Hosts of a lab: a rank on each of the first, then a server on each of the next ones."""

    interface = INTERFACE

    def __init__(self, lab: Lab, ranks: int, servers: int = 0) -> None:
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

    def __init__(self, lab: Lab, ranks: int) -> None:
        self.lab = lab
        self.ranks = ranks

    def host_of(self, _: int) -> Host:
        return self.lab.hosts[0]

    def address(self, _: int) -> str:
        return "127.0.0.1"

    def byteps_environments(self, settings: Mapping[str, str]) -> list[dict[str, str]]:
        return local_environments(self.ranks, next(_ports), settings)


def popen(
    testbed: Testbed, index: int, argv: Sequence[str], env: Mapping[str, str], output: Any
) -> subprocess.Popen[Any]:
    """Starts a rank or, from n on, a server."""
    return testbed.lab.popen(
        testbed.host_of(index).number,
        argv,
        env=dict(env),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def base_environment() -> dict[str, str]:
    """Returns the environment of all ranks: one thread, these sources, no other launcher."""
    return foreign_environment() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
