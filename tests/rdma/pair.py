"""Jobs on two simulated machines of the guest: odd ranks and servers use rxe1, others rxe0.

All processes are forked from one that has imported numpy: to start them one by one takes the
guest's processor seconds.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.cluster import RANK_PROGRAM, Cluster, Member
from support.torch_process import Forkserver

NUMPY = Forkserver(imports=("numpy", "byteps._core", "byteps.numpy", "byteps.config"))
HOSTS = ("10.77.0.1", "10.77.0.2")
DEVICES = ("rxe0", "rxe1")
PATIENCE_S = 120.0  # for a job of a few steps on the guest's slow processor
ROCE_PORT = 4791  # port of UDP


class PairJob(Cluster):
    """A job whose every process is a machine of its own, at one end of the wire."""

    def __init__(
        self,
        folder: Path,
        *,
        transport: str = "rdma",
        servers: int = 2,
        workers: int = 2,
        forkserver: Forkserver = NUMPY,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """A job without processes.

        Args:
            folder: for the outputs, and where the processes run; made here.
            transport: BYTEPS_TRANSPORT of all.
            servers: processes.
            workers: ranks, of which number 0 is the scheduler, too.
            forkserver: the process that forks the ranks.
            env: added to the environment of all.
        """
        folder.mkdir(parents=True)
        settings = {
            "DMLC_PS_ROOT_URI": HOSTS[0],
            "BYTEPS_TRANSPORT": transport,
            "BYTEPS_LOG_LEVEL": "info",
            "BYTEPS_PLACEMENT": "ps",
            "BYTEPS_NIC_PROBE": "0",
            "BYTEPS_RDMA_TIMEOUT": "20",  # see CONTRIBUTING.md
            "BYTEPS_START_TIMEOUT_S": "60",
            "BYTEPS_OP_TIMEOUT_S": "60",
            "BYTEPS_TIMEOUT_S": "20",
        }
        super().__init__(folder, workers, servers, hosted=True, env=settings | dict(env or {}), forkserver=forkserver)

    def start_all(
        self,
        *plan: str | Path,
        program: Path = RANK_PROGRAM,
        env: Mapping[str, Mapping[str, str]] | None = None,
        before: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Starts `program` with `plan` on every rank, and the servers.

        In this order: the first rank may take the guest a minute, which servers would have to wait
        for the job.

        Args:
            plan: arguments of the program.
            program: a script.
            env: by the name of a member ("rank 1"): added to its environment.
            before: by the name of a member: a command that runs the command behind it and keeps the
                pid.
        """
        NUMPY.start(self.env["PYTHONPATH"])
        for rank in range(int(self.env["DMLC_NUM_WORKER"])):
            own = {"DMLC_WORKER_ID": str(rank), "BYTEPS_LOCAL_RANK": "0"}
            self._start_at(rank, f"rank {rank}", [program, *plan], own, env, before)
        for number in range(int(self.env["DMLC_NUM_SERVER"])):
            own = {"DMLC_ROLE": "server"}
            self._start_at(number, f"server {number}", ["-m", "byteps.server"], own, env, before)

    def ranks(self) -> list[Member]:
        return [member for name, member in self.members.items() if name.startswith("rank")]

    def end_all(self) -> None:
        """Fails unless all end well."""
        for member in self.members.values():
            assert member.end(PATIENCE_S) == 0, self.describe()

    def lines(self, text: str) -> list[str]:
        """Returns the output lines of members that contain `text`."""
        return [
            f"{name}: {line}"
            for name, member in self.members.items()
            for line in member.output.splitlines()
            if text in line
        ]

    def _start_at(
        self,
        number: int,
        name: str,
        arguments: list[str | Path],
        own: Mapping[str, str],
        env: Mapping[str, Mapping[str, str]] | None,
        before: Mapping[str, Sequence[str]] | None,
    ) -> None:
        settings = {
            "BYTEPS_MACHINE": name.replace(" ", "-"),
            "DMLC_NODE_HOST": HOSTS[number % 2],
            "BYTEPS_RDMA_DEVICES": DEVICES[number % 2],
        }
        forkserver = NUMPY if name.startswith("server") else None  # PyTorch takes long to exit
        settings |= {**own, **(env or {}).get(name, {})}
        self._start(name, arguments, settings, (before or {}).get(name, ()), forkserver)


@dataclass(frozen=True)
class Traffic:
    """Counters of the guest's traffic."""

    rdma_packets: int  # number of packets with up to 4096 bytes of payload
    tcp_segments: int  # number of packets with up to 4160 bytes on the wire, 65536 on lo

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.rdma_packets - other.rdma_packets, self.tcp_segments - other.tcp_segments)


def traffic() -> Traffic:
    packets = 0
    for device in DEVICES:
        packets += int(Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts").read_text())
    names, values = (line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line[:4] == "Tcp:")
    return Traffic(packets, int(values[names.index("OutSegs")]))


@contextlib.contextmanager
def losing(what: Sequence[str] = ("ipproto", "udp", "dport", str(ROCE_PORT))) -> Iterator[None]:
    """Drops packets of this kind to 10.77.0.2, but not TCP.

    Args:
        what: of `ip rule`; nothing: all packets.
    """
    rule = ["pref", "5", "iif", "veth1", *what, "blackhole"]
    ip("rule", "add", *rule)
    try:
        yield
    finally:
        ip("rule", "del", *rule)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=PATIENCE_S)
