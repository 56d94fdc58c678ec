"""The environment of byteps processes on the hosts of a lab: one worker on each of the first n, then k servers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from benchmarks.lab.lab import INTERFACE, Host, Lab

_PORT = 7400  # each lab has its own, whatever runs on the machine
_LAUNCHERS = ("BYTEPS_", "DMLC_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")


class LabJob:
    """One job: its members are (environment, host) pairs."""

    def __init__(self, lab: Lab, workers: int, settings: Mapping[str, str] | None = None, port: int = _PORT) -> None:
        """A job over all hosts of the lab.

        Args:
            lab: the hosts; those beyond `workers` are servers.
            workers: how many hosts have a worker; the first one has the scheduler, too.
            settings: for the environment of all members.
            port: of the scheduler; two jobs at once in one lab need two.
        """
        self._lab = lab
        self.workers = lab.hosts[:workers]
        self.servers = lab.hosts[workers:]
        self._shared = {
            **foreign_environment(),
            "BYTEPS_JOB_ID": f"lab-{secrets.token_hex(8)}",
            "BYTEPS_SECRET": secrets.token_hex(16),
            "BYTEPS_HOST_SCHEDULER": "1",
            "BYTEPS_LOCAL_SIZE": "1",
            "DMLC_NUM_WORKER": str(len(self.workers)),
            "DMLC_NUM_SERVER": str(len(self.servers)),
            "DMLC_PS_ROOT_URI": self.workers[0].address,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_INTERFACE": INTERFACE,
            **(settings or {}),
        }

    def environment(self, host: Host) -> dict[str, str]:
        """Of the member on that host."""
        own = {
            "BYTEPS_NIC_MBPS": f"{host.mbps:g}",
            "LAB_HOST": host.name,
            "LAB_ADDRESSES": ",".join(each.address for each in self._lab.hosts),
        }
        if host.number < len(self.workers):
            own |= {"DMLC_WORKER_ID": str(host.number), "BYTEPS_LOCAL_RANK": "0"}
        else:
            own["DMLC_ROLE"] = "server"
        return self._shared | own


def foreign_environment() -> dict[str, str]:
    """Ours, without the settings of any job."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
