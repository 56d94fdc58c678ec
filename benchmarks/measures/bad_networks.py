"""A tensor over links that lose, delay and jitter: with the default settings, beside gloo, OpenMPI and plain TCP."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bounds import placement_bound_s
from benchmarks.harness.alternate import alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Impairments, Lab
from benchmarks.lab.iperf import goodput_mbps
from benchmarks.measures.shapes import bytes_per_s
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts

TITLE = "Network lab: bad networks"
DEADLINE_S = 7200

WORKERS = (2, 4)
# By number of workers. Every packet of every host goes through the relay, which is in time on two
# cores for two hosts at 200 Mbit/s or six at 100.
RATES_MBPS = {2: 200, 4: 100}
TENSOR_BYTES = {2: 16 << 20, 4: 8 << 20}
SERVERS = (0, 2)
LOSSES_PERCENT = (0, 0.1, 1, 3)
DELAYS_MS = (0, 5, 20, 50)
PEERS = ("gloo", "openmpi", "plain sockets")
# Where each contender is compared with its own plain loop, which takes twice as long as the rest.
WITH_PLAIN_LOOPS = (Impairments(), Impairments(loss_percent=1, delay_ms=20))
# The links are as unknown as in a job whose user has set nothing.
DEFAULTS = {"BYTEPS_NIC_MBPS": "0"}


def all_impairments() -> Iterator[Impairments]:
    """Each loss with each delay; jitter of a quarter of each delay; reordering and duplicates."""
    for loss in LOSSES_PERCENT:
        for delay_ms in DELAYS_MS:
            yield Impairments(loss_percent=loss, delay_ms=delay_ms)
    for loss in (0, 1):
        for delay_ms in DELAYS_MS[1:]:
            yield Impairments(loss_percent=loss, delay_ms=delay_ms, jitter_ms=delay_ms / 4)
    yield Impairments(reorder_percent=10)
    yield Impairments(duplicate_percent=2)


def run(recorder: Recorder) -> None:
    for workers in WORKERS:
        for impairments in all_impairments():
            for case in measure(workers, impairments):
                recorder.add(case)


def measure(workers: int, impairments: Impairments) -> Iterator[Case]:
    """Measures one network with every number of servers. The peers use no servers."""
    tensor_bytes = TENSOR_BYTES[workers]
    with Lab([RATES_MBPS[workers]] * (workers + max(SERVERS)), impairments=impairments) as lab:
        contenders = [launch.byteps(OnHosts(lab, workers, k), _name(k), DEFAULTS) for k in SERVERS]
        peers = OnHosts(lab, workers)
        contenders += [launch.gloo(peers), launch.openmpi(peers), launch.sockets(peers)]
        plain_turns = 1 if impairments in WITH_PLAIN_LOOPS else 0
        figures = alternate(contenders, {"bytes": tensor_bytes}, turns=3, deadline_s=200, plain_turns=plain_turns)
        # As many streams as a member of the job has connections: one to each other member.
        goodputs = {k: max(goodput_mbps(lab, streams=workers - 1 + k)) for k in SERVERS}
        overruns, late = lab.relay.overruns(), lab.relay.late()
    ring_s = placement_bound_s(tensor_bytes, [bytes_per_s(goodputs[0])] * workers)
    # A gradient's last byte and then its sum's are on their way for this long, at whatever rate.
    there_and_back_s = 2 * impairments.delay_ms / 1e3
    for servers, goodput in goodputs.items():
        rate = bytes_per_s(goodput)
        mine = {"byteps": figures[_name(servers)]} | {name: figures[name] for name in PEERS}
        case = Case(
            f"({workers}, {servers}), {RATES_MBPS[workers]} Mbit/s, {tensor_bytes >> 20} MiB, {impairments}",
            placement_bound_s(tensor_bytes, [rate] * workers, [rate] * servers) + there_and_back_s,
            f"iperf3, {workers - 1 + servers} streams per host: {goodput:.1f} Mbit/s; one round trip",
            mine,
            gigabytes=workers * tensor_bytes / 1e9,
            bounds_s=dict.fromkeys(PEERS, ring_s + there_and_back_s),
        )
        case.at_least("speed / gloo's", case.ratio("gloo", "byteps"), 1.0)
        case.at_most("time / bound", case.over_bound("byteps"), 1 / 0.9)
        # iperf3 never waits for its last bytes, each of the two transfers of a sum does.
        case.at_most("time / plain sockets'", case.ratio("byteps", "plain sockets"), 1 / 0.9)
        if overruns:
            case.notes["packets lost because the relay was late"] = overruns
        if late:
            case.notes["packets more than 5 ms late because of the relay"] = late
        yield case


def _name(servers: int) -> str:
    return f"byteps, k = {servers}"
