"""The machines of a plan, what is assumed about them, and the least time that they need."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from byteps.errors import InvalidArgumentError

MAX_PROCESSES = 1 << 14
PLACEMENTS = {"allreduce": "all-reduce", "ps": "parameter server", "auto": "byteps"}
DEFAULT_GBPS = 100.0
_MAX_ROWS = 17
_NEARLY = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Cluster:
    """Worker machines and servers. Speeds are the rates of links, in Mbit/s."""

    machines_mbps: list[float]
    servers_mbps: list[float]
    other_mbps: float  # of additional servers
    ranks_per_machine: int
    threads: int  # of the service of each process, at most
    sum_bytes_per_s: float  # of each thread: bytes of contributions
    assumptions: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raises InvalidArgumentError if no job can have as many processes."""
        machines, servers = len(self.machines_mbps), len(self.servers_mbps)
        if machines * self.ranks_per_machine + servers > MAX_PROCESSES:
            raise InvalidArgumentError(
                f"a job has at most {MAX_PROCESSES} processes, not {machines} machines with {self.ranks_per_machine} "
                f"GPUs each and {servers} servers (--gpus-per-machine)"
            )

    def shares(self, placement: str) -> list[float]:
        from byteps import _core

        return _core.reducer_host_shares(self.machines_mbps, self.servers_mbps, placement)

    def seconds(self, placement: str, nbytes: int) -> float:
        """Returns the least time in which these machines sum `nbytes`."""
        from byteps import _core

        return _core.bound_seconds(
            self.machines_mbps,
            self.servers_mbps,
            placement,
            nbytes,
            self.ranks_per_machine,
            self.threads,
            self.sum_bytes_per_s,
        )

    def with_servers(self, count: int) -> Cluster:
        servers = self.servers_mbps[:count]
        return replace(self, servers_mbps=servers + [self.other_mbps] * (count - len(servers)))

    @property
    def most_servers(self) -> int:
        """The number of servers that a job may have."""
        return MAX_PROCESSES - len(self.machines_mbps) * self.ranks_per_machine


def cards_of(
    workers: int | None,
    servers: int | None,
    nic_gbps: float | None,
    worker_gbps: Sequence[float] | None,
    server_gbps: Sequence[float] | None,
) -> tuple[list[float], list[float], float, list[str]]:
    """Returns speeds in Mbit/s of the workers, the servers and each additional server, and what was assumed.

    A card of unknown speed counts as in a job: as the mean of the known ones.
    """
    assumed: list[str] = []
    if worker_gbps is None and workers is None:
        raise InvalidArgumentError("expected --workers or --worker-gbps")
    if worker_gbps is None and nic_gbps is None:
        assumed.append(f"worker machines have cards of {DEFAULT_GBPS:g} Gbit/s (--nic-gbps)")
    known = statistics.fmean(worker_gbps) if worker_gbps else DEFAULT_GBPS
    machines = _speeds("worker", worker_gbps, workers, nic_gbps or known)
    if server_gbps is None and nic_gbps is None and (servers or worker_gbps):
        assumed.append(f"servers have cards of {known:g} Gbit/s, as worker machines on average (--server-gbps)")
    on_servers = _speeds("server", server_gbps, servers, nic_gbps or known)
    other = statistics.fmean(on_servers) if on_servers else (nic_gbps or known) * 1e3
    if server_gbps is not None and len(set(server_gbps)) > 1:
        assumed.append(f"further servers have cards of {other / 1e3:g} Gbit/s, the mean of --server-gbps")
    return machines, on_servers, other, assumed


def _speeds(kind: str, gbps: Sequence[float] | None, count: int | None, otherwise_gbps: float) -> list[float]:
    if gbps is None:
        return [otherwise_gbps * 1e3] * (count or 0)
    if count not in {None, len(gbps)}:
        raise InvalidArgumentError(f"--{kind}s {count}: expected {len(gbps)}, the number of speeds in --{kind}-gbps")
    return [speed * 1e3 for speed in gbps]


@dataclass(frozen=True, slots=True)
class ServerTable:
    """The times with some numbers of servers."""

    seconds: dict[int, float]  # by number of servers
    useful: int  # the least number with the shortest time
    half: int  # the least number that saves half as much


def server_table(cluster: Cluster, nbytes: int) -> ServerTable:
    """Computes the times with 0 to as many servers as are useful, and with as many as there are."""
    known: dict[int, float] = {}

    def seconds(count: int) -> float:
        if count not in known:
            known[count] = cluster.with_servers(count).seconds("auto", nbytes)
        return known[count]

    most = max(cluster.most_servers, len(cluster.servers_mbps))
    shortest = seconds(most)
    useful = _least(most, lambda count: seconds(count) <= shortest * _NEARLY)
    saved = seconds(0) - seconds(useful)
    half = _least(useful, lambda count: seconds(0) - seconds(count) >= saved / 2)
    own = len(cluster.servers_mbps)
    last = max(useful, own, min(most, len(cluster.machines_mbps)))
    step = max(1, -(-last // (_MAX_ROWS - 1)))
    rows = sorted({*range(0, last + 1, step), last, own, useful})
    return ServerTable({count: seconds(count) for count in rows}, useful, half)


def _least(most: int, is_enough: Callable[[int], bool]) -> int:
    """Returns the least number up to `most` that is enough. Larger numbers are enough as well, and so is `most`."""
    low, step = 0, 1
    while step < most and not is_enough(step - 1):  # few servers are the usual answer, and quick to compute
        low, step = step, 2 * step
    high = min(step - 1, most) if step < most else most
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
