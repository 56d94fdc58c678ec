"""Where the ranks of a contender run: on the hosts of a lab, or all on this machine."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.lab import Host, Lab
from benchmarks.lab.job import LabJob, foreign_environment
from benchmarks.lab.lab import INTERFACE

ROOT = Path(__file__).resolve().parents[2]


class Place(Protocol):
    """n ranks, and k servers for those who can use them."""

    ranks: int
    servers: int
    interface: str

    def address(self, rank: int) -> str:
        """Of the host that the rank runs on."""

    def popen(self, index: int, argv: Sequence[str], env: Mapping[str, str], output: Any) -> subprocess.Popen[Any]:
        """Starts a process where rank `index` runs, or, from n on, a server."""

    def byteps_environments(self, settings: Mapping[str, str]) -> list[dict[str, str]]:
        """Of the ranks and servers of a new job of byteps."""


class InLab:
    """One rank on each of the first hosts of a lab; the others are for servers."""

    interface = INTERFACE

    def __init__(self, lab: Lab, ranks: int) -> None:
        self.lab = lab
        self.ranks = ranks
        self.servers = len(lab.hosts) - ranks
        self._next_port = 7400

    def address(self, rank: int) -> str:
        return self.lab.hosts[rank].address

    def popen(self, index: int, argv: Sequence[str], env: Mapping[str, str], output: Any) -> subprocess.Popen[Any]:
        return self.lab.popen(index, argv, env=dict(env), cwd=ROOT, **_streams(output))

    def byteps_environments(self, settings: Mapping[str, str]) -> list[dict[str, str]]:
        self._next_port += 1
        job = LabJob(self.lab, self.ranks, settings, self._next_port)
        return [job.environment(host) for host in self.lab.hosts]

    def hosts(self) -> list[Host]:
        return self.lab.hosts[: self.ranks]


class OnOneMachine:
    """All ranks on this machine, no servers."""

    interface = "lo"
    servers = 0

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def address(self, _: int) -> str:
        return "127.0.0.1"

    def popen(self, _: int, argv: Sequence[str], env: Mapping[str, str], output: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(argv, env=dict(env), cwd=ROOT, **_streams(output))

    def byteps_environments(self, settings: Mapping[str, str]) -> list[dict[str, str]]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        shared = {
            **foreign_environment(),
            "BYTEPS_JOB_ID": f"bench-{secrets.token_hex(8)}",
            "BYTEPS_SECRET": secrets.token_hex(16),
            "BYTEPS_HOST_SCHEDULER": "1",
            "BYTEPS_LOCAL_SIZE": str(self.ranks),
            "DMLC_NUM_WORKER": "1",
            "DMLC_WORKER_ID": "0",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(port),
            **settings,
        }
        return [shared | {"BYTEPS_LOCAL_RANK": str(rank)} for rank in range(self.ranks)]


def _streams(output: Any) -> dict[str, Any]:
    return {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}


def base_environment() -> dict[str, str]:
    """For every rank program: one thread, our sources, no settings of other launchers."""
    return foreign_environment() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
