"""Servers on a core of their own: adding them must not make a step slower than without them."""

from collections.abc import Iterator

from benchmarks.bounds import placement_bound_s
from benchmarks.harness.alternate import Figures, alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.lab.iperf import best_share
from benchmarks.measures.shapes import bytes_per_s
from benchmarks.peers import launch
from benchmarks.peers.testbeds import Cores, OnHosts

TITLE = "Network lab: servers on a core of their own, the workers on another"
DEADLINE_S = 400

WORKERS = (2, 3)
SERVERS = (0, 1, 2)
TENSOR_BYTES = {200: 16 << 20, 1000: 64 << 20}  # by Mbit/s
NOISE = 1.02


def run(recorder: Recorder) -> None:
    for workers in WORKERS:
        for rate_mbps in TENSOR_BYTES:
            for case in measure(workers, rate_mbps):
                recorder.add(case)


def measure(workers: int, rate_mbps: int) -> Iterator[Case]:
    """A case for each number of servers, all measured in turns."""
    size_bytes = TENSOR_BYTES[rate_mbps]
    with Lab([rate_mbps] * (workers + max(SERVERS))) as lab:
        contenders = [
            launch.byteps(OnHosts(lab, workers, servers, Cores.SERVERS_APART), _name(servers)) for servers in SERVERS
        ]
        figures = alternate(contenders, {"bytes": size_bytes}, turns=7, deadline_s=80, plain_turns=0)
        rate = bytes_per_s(rate_mbps * best_share(lab))
    for servers in SERVERS:
        mine = {"byteps": figures[_name(servers)]}
        if servers:
            mine[_name(0)] = figures[_name(0)]
        yield _case(workers, servers, rate_mbps, rate, mine)


def _case(workers: int, servers: int, rate_mbps: int, rate: float, figures: dict[str, Figures]) -> Case:
    size_bytes = TENSOR_BYTES[rate_mbps]
    case = Case(
        f"({workers}, {servers}) at {rate_mbps} Mbit/s, {size_bytes >> 20} MiB",
        placement_bound_s(size_bytes, [rate] * workers, [rate] * servers),
        f"iperf3: {rate * 8 / 1e6:.1f} Mbit/s",
        figures,
        gigabytes=workers * size_bytes / 1e9,
        bounds_s={_name(0): placement_bound_s(size_bytes, [rate] * workers)},
    )
    if servers:
        case.at_most("time / that without servers", case.ratio("byteps", _name(0)), NOISE)
    return case


def _name(servers: int) -> str:
    return f"byteps, k = {servers}"
