"""64 MiB over links of different rates: the water-filled shares, beside equal ones."""

import statistics

from benchmarks.bounds import placement_bound_s
from benchmarks.harness.alternate import alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.lab.iperf import goodput_mbps
from benchmarks.measures.shapes import TENSOR_BYTES, bytes_per_s
from benchmarks.peers import launch
from benchmarks.peers.places import OnHosts

TITLE = "Network lab: unequal links, 64 MiB float32"
DEADLINE_S = 150

WORKERS_MBPS = (200, 200, 100, 200)
SERVERS_MBPS = (400, 100)
BELIEVE_EQUAL = {"BYTEPS_NIC_MBPS": "200"}


def run(recorder: Recorder) -> None:
    with Lab([*WORKERS_MBPS, *SERVERS_MBPS]) as lab:
        # A stream is as fast as the slower of its two links: what a link carries for each Mbit/s of its rate.
        rates = [host.mbps for host in lab.hosts]
        slower = [min(rate, rates[(i + 1) % len(rates)]) for i, rate in enumerate(rates)]
        share = statistics.median(got / rate for got, rate in zip(goodput_mbps(lab), slower, strict=True))
        place = OnHosts(lab, len(WORKERS_MBPS), len(SERVERS_MBPS))
        contenders = [
            launch.byteps(place),
            launch.byteps(place, "byteps, shares as if equal", BELIEVE_EQUAL),
            launch.gloo(OnHosts(lab, len(WORKERS_MBPS))),
        ]
        figures = alternate(contenders, {"bytes": TENSOR_BYTES}, deadline_s=120)
    workers = [bytes_per_s(rate * share) for rate in WORKERS_MBPS]
    servers = [bytes_per_s(rate * share) for rate in SERVERS_MBPS]
    case = Case(
        f"workers {'/'.join(map(str, WORKERS_MBPS))}, servers {'/'.join(map(str, SERVERS_MBPS))} Mbit/s",
        placement_bound_s(TENSOR_BYTES, workers, servers),
        f"water-filling; links carry {share:.3f} of their rates by iperf3",
        figures,
        gigabytes=len(workers) * TENSOR_BYTES / 1e9,
    )
    case.at_most("time / bound", case.over_bound("byteps"), 1.08)
    case.at_least("speed / equal shares'", case.ratio("byteps, shares as if equal", "byteps"), 1.2)
    recorder.add(case)
