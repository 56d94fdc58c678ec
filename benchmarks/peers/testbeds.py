"""Where the ranks of a contender run: on the hosts of a lab, or all on this machine."""

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
_ports = itertools.count(7400)  # each job's own; a lab's hosts have no other listeners


class Testbed(Protocol):
    """n ranks, and k servers for those who can use them."""

    lab: Lab
    ranks: int
    servers: int
    interface: str

    def host_of(self, index: int) -> Host:
        """Where rank `index` runs, or, from n on, a server."""

    def address(self, rank: int) -> str:
        """By which the other ranks reach it."""

    def byteps_environments(self, settings: Mapping[str, str]) -> list[dict[str, str]]:
        """Of the ranks and servers of a new job of byteps."""


class OnHosts:
    """One rank on each of the first hosts of a lab, then one server each on the next ones."""

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
    """All ranks on the one host of a lab, as on a machine without a network: its limits do not touch the loopback."""

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
    """For every rank program: one thread, our sources, no settings of other launchers."""
    return foreign_environment() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
