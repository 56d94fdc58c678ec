"""64 MiB over links of different rates: the water-filled shares, beside equal ones."""

from benchmarks.bounds import placement_bound_s
from benchmarks.harness.alternate import alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.lab.iperf import best_share
from benchmarks.measures.shapes import TENSOR_BYTES, bytes_per_s
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts

TITLE = "Network lab: unequal links, 64 MiB float32"
DEADLINE_S = 240

WORKERS_MBPS = (200, 200, 100, 200)
SERVERS_MBPS = (400, 100)
BELIEVE_EQUAL = {"BYTEPS_NIC_MBPS": "200"}


def run(recorder: Recorder) -> None:
    with Lab([*WORKERS_MBPS, *SERVERS_MBPS]) as lab:
        share = best_share(lab)
        testbed = OnHosts(lab, len(WORKERS_MBPS), len(SERVERS_MBPS))
        contenders = [
            launch.byteps(testbed),
            launch.byteps(testbed, "byteps, shares as if equal", BELIEVE_EQUAL, plain=False),
            launch.gloo(OnHosts(lab, len(WORKERS_MBPS))),
        ]
        figures = alternate(contenders, {"bytes": TENSOR_BYTES}, deadline_s=200, plain_turns=1)
        share = max(share, best_share(lab))
    workers = [bytes_per_s(rate * share) for rate in WORKERS_MBPS]
    servers = [bytes_per_s(rate * share) for rate in SERVERS_MBPS]
    case = Case(
        f"workers {'/'.join(map(str, WORKERS_MBPS))}, servers {'/'.join(map(str, SERVERS_MBPS))} Mbit/s",
        placement_bound_s(TENSOR_BYTES, workers, servers),
        f"water-filling; links carry {share:.3f} of their rates by the better of two runs of iperf3",
        figures,
        gigabytes=len(workers) * TENSOR_BYTES / 1e9,
    )
    case.at_most("time / bound", case.over_bound("byteps"), 1.08)
    case.at_least("speed / equal shares'", case.ratio("byteps, shares as if equal", "byteps"), 1.2)
    recorder.add(case)
