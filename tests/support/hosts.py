"""Jobs on the hosts of a lab, with several ranks each, which a test starts and kills."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.cluster import RANK_PROGRAM, Member
from support.job import ROOT

from benchmarks.lab import Lab
from benchmarks.lab.job import LabJob

COMMON = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
    "BYTEPS_START_TIMEOUT_S": "30",
    "BYTEPS_OP_TIMEOUT_S": "60",
}


class Hosts:
    """The processes of one job. Leaving its context kills what is left of them."""

    def __init__(
        self,
        folder: Path,
        lab: Lab,
        machines: int,
        ranks_each: int = 1,
        servers: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """A job on the first hosts of the lab, without processes yet.

        Args:
            folder: for the outputs.
            lab: the hosts; the next ones have the servers.
            machines: how many of them have ranks.
            ranks_each: on each of those, numbered host by host.
            servers: one on each of so many hosts.
            env: added to the environment of all.
        """
        settings = {**COMMON, "BYTEPS_LOCAL_SIZE": str(ranks_each), **(env or {})}
        self.members: dict[str, Member] = {}
        self.size = machines * ranks_each
        self._folder = folder
        self._lab = lab
        self._ranks_each = ranks_each
        self._job = LabJob(lab, machines, servers, settings)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            member.kill()

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def start_all(self, *plan: str, program: Path = RANK_PROGRAM) -> None:
        """Starts the servers, and `program` with `plan` on every rank."""
        for number, host in enumerate(self._job.servers):
            self._start(f"server {number}", host.number, ["-m", "byteps.server"], self._job.environment(host))
        for rank in range(self.size):
            host = self._job.workers[self.host_of(rank)]
            own = {"BYTEPS_LOCAL_RANK": str(rank % self._ranks_each)}
            self._start(f"rank {rank}", host.number, [program, *plan], self._job.environment(host) | own)

    def host_of(self, rank: int) -> int:
        return rank // self._ranks_each

    def ranks_on(self, host: int) -> list[Member]:
        return [self[f"rank {rank}"] for rank in range(self.size) if self.host_of(rank) == host]

    def end_all(self) -> None:
        """Fails the test unless all end well."""
        for member in self.members.values():
            assert member.end() == 0, self.describe()

    def others(self, *lost: Member) -> Iterator[Member]:
        return (member for member in self.members.values() if member not in lost)

    def describe(self) -> str:
        return "\n".join(member.describe() for member in self.members.values())

    def _start(self, name: str, host: int, arguments: list[str | Path], env: Mapping[str, str]) -> None:
        command = [*self._lab.enter_command(host), sys.executable, *arguments]
        self.members[name] = Member(name, command, env, self._folder)
