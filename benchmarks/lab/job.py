"""Environments of byteps processes in a lab: n workers, then k servers, one on each host."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from benchmarks.lab.lab import INTERFACE, UNLIMITED, Host, Lab

DEFAULT_PORT = 7400  # each lab has its own, whatever runs on the machine
_LAUNCHERS = ("BYTEPS_", "DMLC_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")


class LabJob:
    """A job: a worker on each of the first hosts, then servers."""

    def __init__(
        self,
        lab: Lab,
        workers: int,
        servers: int,
        settings: Mapping[str, str] | None = None,
        port: int = DEFAULT_PORT,
    ) -> None:
        """A job on the first hosts of the lab.

        Args:
            lab: the hosts.
            workers: how many hosts have a worker; the first one has the scheduler, too.
            servers: how many of the next ones have a server.
            settings: for the environment of all members.
            port: of the scheduler; two jobs at once in one lab need two.
        """
        self._lab = lab
        self.workers = lab.hosts[:workers]
        self.servers = lab.hosts[workers : workers + servers]
        self._settings = dict(settings or {})
        self._shared = {
            **_job_environment(self.workers[0].address, port),
            "BYTEPS_LOCAL_SIZE": "1",
            "DMLC_NUM_WORKER": str(len(self.workers)),
            "DMLC_NUM_SERVER": str(len(self.servers)),
            "DMLC_INTERFACE": INTERFACE,
        }

    def environment(self, host: Host) -> dict[str, str]:
        """Returns the environment of the member on that host."""
        own = {
            "BYTEPS_NIC_MBPS": f"{host.mbps:g}" if host.mbps != UNLIMITED else "0",
            "LAB_HOST": host.name,
            "LAB_ADDRESSES": ",".join(each.address for each in self._lab.hosts),
        }
        if host.number < len(self.workers):
            own |= {"DMLC_WORKER_ID": str(host.number), "BYTEPS_LOCAL_RANK": "0"}
        else:
            own["DMLC_ROLE"] = "server"
        return self._shared | own | self._settings


def foreign_environment() -> dict[str, str]:
    """Ours, without the settings of any job."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}


def local_environments(ranks: int, port: int, settings: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns the environments of the ranks of a job on one host."""
    shared = {
        **_job_environment("127.0.0.1", port),
        "BYTEPS_LOCAL_SIZE": str(ranks),
        "DMLC_NUM_WORKER": "1",
        "DMLC_WORKER_ID": "0",
        **settings,
    }
    return [shared | {"BYTEPS_LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _job_environment(scheduler: str, port: int) -> dict[str, str]:
    return {
        **foreign_environment(),
        "BYTEPS_JOB_ID": f"lab-{secrets.token_hex(8)}",
        "BYTEPS_SECRET": secrets.token_hex(16),
        "BYTEPS_HOST_SCHEDULER": "1",
        "DMLC_PS_ROOT_URI": scheduler,
        "DMLC_PS_ROOT_PORT": str(port),
    }
