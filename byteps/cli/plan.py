"""`byteps plan`: computes the best placement for a cluster, its time, and the benefit of servers.

Times are those of the network alone (csrc/protocol/placement.h); ranks of a machine are summed
first. --simulate also runs a training step with the protocol's own code on a simulated network.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from byteps.cli.table import format_table
from byteps.config import Config
from byteps.errors import InvalidArgumentError

_PLACEMENTS = {"allreduce": "all-reduce", "ps": "parameter server", "auto": "byteps"}
_MODELS = ("vgg16", "resnet50", "gpt2")
_LAYERS = 50  # number of layers of a model of which only the size is known
_MAX_SITES = 1 << 14
_PARTITION_KIB = 256
_MAX_MESSAGES = 6_000_000  # up to 20 s for each placement
_MAX_ROWS = 17


@dataclass(frozen=True, slots=True)
class Cluster:
    machines_mbps: list[float]
    servers_mbps: list[float]
    other_mbps: float  # speed of additional servers
    nbytes: int

    def shares(self, placement: str) -> list[float]:
        from byteps import _core

        return _core.reducer_host_shares(self.machines_mbps, self.servers_mbps, placement)

    def seconds(self, placement: str) -> float:
        from byteps import _core

        return _core.predicted_seconds(self.machines_mbps, self.servers_mbps, self.shares(placement), self.nbytes)

    def with_servers(self, count: int) -> Cluster:
        servers = self.servers_mbps[:count]
        return Cluster(
            self.machines_mbps, servers + [self.other_mbps] * (count - len(servers)), self.other_mbps, self.nbytes
        )


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plan", help="predict shares, times and the benefit of servers", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--workers", type=_count(1), metavar="N", help="number of worker machines")
    parser.add_argument("--servers", type=_count(0), metavar="K", help="number of server machines (0)")
    parser.add_argument(
        "--nic-gbps", type=_positive, default=100.0, metavar="G", help="speed of network cards in each direction (100)"
    )
    parser.add_argument(
        "--worker-gbps", type=_speeds, metavar="G,G,...", help="speeds of the worker machines, if they differ"
    )
    parser.add_argument("--server-gbps", type=_speeds, metavar="G,G,...", help="speeds of the servers, if they differ")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--model-mb", type=_positive, metavar="MB", help="size of all gradients in millions of bytes")
    size.add_argument("--model", choices=_MODELS, help="a known model")
    parser.add_argument(
        "--gpus-per-machine", type=_count(1), default=8, metavar="G", help="number of GPUs in each worker machine (8)"
    )
    parser.add_argument("--simulate", action="store_true", help="also run the protocol on a simulated network")
    parser.add_argument("--compute-ms", type=_positive, metavar="MS", help="computing time of a step in the simulation")
    parser.add_argument("--partition-kib", type=_count(4), metavar="KIB", help="BYTEPS_PARTITION_BYTES / 1024")
    parser.add_argument(
        "--latency-us", type=_positive, default=10.0, metavar="US", help="latency of the simulated network (10)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _count(low: int) -> Any:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= _MAX_SITES:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {low} to {_MAX_SITES}")
        return int(text)

    return parse


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1e-3 <= value <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0.001 to 1e9")
    return value


def _speeds(text: str) -> list[float]:
    return [_positive(word) for word in text.split(",")]


def _run(arguments: argparse.Namespace) -> int:
    layers, compute_s = _layers(arguments)
    cluster = Cluster(
        _cards("worker", arguments.worker_gbps, arguments.workers, arguments.nic_gbps),
        _cards("server", arguments.server_gbps, arguments.servers, arguments.nic_gbps),
        arguments.nic_gbps * 1e3,
        sum(nbytes for nbytes, _ in layers),
    )
    report: dict[str, Any] = {
        "machines_mbps": cluster.machines_mbps,
        "servers_mbps": cluster.servers_mbps,
        "gpus": len(cluster.machines_mbps) * arguments.gpus_per_machine,
        "model_bytes": cluster.nbytes,
        "shares": cluster.shares("auto"),
        "predicted_s": {placement: cluster.seconds(placement) for placement in _PLACEMENTS},
        "by_servers_s": by_servers(cluster),
    }
    if arguments.simulate:
        report["simulation"] = simulate(arguments, cluster, layers, compute_s)
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(as_text(report)))
    return 0


def _layers(arguments: argparse.Namespace) -> tuple[list[tuple[int, float]], float]:
    from byteps import _core

    if arguments.model:
        layers, compute_s = _core.model_layers(arguments.model)
    else:
        elements = round(arguments.model_mb * 1e6 / 4)
        cuts = [elements * i // _LAYERS for i in range(_LAYERS + 1)]
        layers, compute_s = [(4 * (end - start), 1.0) for start, end in pairwise(cuts)], 0.0
    return layers, compute_s if arguments.compute_ms is None else arguments.compute_ms / 1e3


def _cards(kind: str, gbps: list[float] | None, count: int | None, default_gbps: float) -> list[float]:
    """Returns speeds in Mbit/s."""
    if gbps is None:
        if count is None and kind == "worker":
            raise InvalidArgumentError("expected --workers or --worker-gbps")
        return [default_gbps * 1e3] * (count or 0)
    if count not in {None, len(gbps)}:
        raise InvalidArgumentError(f"--{kind}s {count}: expected {len(gbps)}, the number of speeds in --{kind}-gbps")
    return [speed * 1e3 for speed in gbps]


def by_servers(cluster: Cluster) -> list[float]:
    """Returns seconds with 0, 1, ... servers, at least up to the number of worker machines."""
    most = max(len(cluster.machines_mbps), len(cluster.servers_mbps))
    return [cluster.with_servers(count).seconds("auto") for count in range(most + 1)]


def simulate(
    arguments: argparse.Namespace, cluster: Cluster, layers: list[tuple[int, float]], compute_s: float
) -> dict[str, Any]:
    from byteps import _core

    knobs = Config.knobs()
    wanted = (arguments.partition_kib or _PARTITION_KIB) << 10
    least = 2 * len(cluster.machines_mbps) * cluster.nbytes // _MAX_MESSAGES  # bounds the time
    partition_bytes = max(wanted, least)
    runs: dict[tuple[float, ...], dict[str, float]] = {}  # by shares, which may be equal
    for placement in _PLACEMENTS:
        if (shares := tuple(cluster.shares(placement))) in runs:
            continue
        runs[shares] = _core.simulate_step(
            cluster.machines_mbps,
            cluster.servers_mbps,
            placement,
            layers,
            compute_s,
            partition_bytes,
            int(str(knobs["credit_bytes"].default)),
            arguments.latency_us / 1e6,
        )
    placements = {placement: runs[tuple(cluster.shares(placement))] for placement in _PLACEMENTS}
    return {"compute_s": compute_s, "partition_bytes": partition_bytes, "placements": placements}


def as_text(report: dict[str, Any]) -> Iterator[str]:
    machines, servers = report["machines_mbps"], report["servers_mbps"]
    yield (
        f"{len(machines)} worker machines ({report['gpus']} GPUs) and {len(servers)} servers sum "
        f"{report['model_bytes'] / 1e6:.0f} MB in each step.\n"
    )
    yield format_table([("SITE", "CARD", "SHARE", "MB"), *_share_rows(report)])
    yield ""
    predicted = report["predicted_s"]
    rows = [("PLACEMENT", "TIME", "BYTEPS IS FASTER BY")]
    for placement, name in _PLACEMENTS.items():
        ratio = f"{predicted[placement] / predicted['auto']:.2f}x" if predicted["auto"] else "-"
        rows.append((name, _ms(predicted[placement]), "" if placement == "auto" else ratio))
    yield format_table(rows)
    yield ""
    yield format_table([("SERVERS", "TIME", "SAVED BY THE LAST", "SPEEDUP"), *_server_rows(report)])
    yield f"\n{verdict(report['by_servers_s'], len(servers))}"
    if "simulation" in report:
        yield ""
        yield from _simulation_text(report["simulation"])


def _share_rows(report: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields a row for each group of equal neighbours."""
    machines, servers, shares = report["machines_mbps"], report["servers_mbps"], report["shares"]
    names = [("machine", i) for i in range(len(machines))] + [("server", i) for i in range(len(servers))]
    sites = zip(names, [*machines, *servers], shares, strict=True)
    for (kind, mbps, share), group in groupby(sites, key=lambda site: (site[0][0], site[1], round(site[2], 9))):
        numbers = [number for (_, number), _, _ in group]
        span = f"{kind} {numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "")
        yield span, f"{mbps / 1e3:g} Gbit/s", f"{share:.2%}", f"{share * report['model_bytes'] / 1e6:.1f}"


def _server_rows(report: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    times = report["by_servers_s"]
    last = len(times) - 1
    step = max(1, -(-last // (_MAX_ROWS - 1)))
    for count in sorted({*range(0, last + 1, step), last, len(report["servers_mbps"])}):
        saved = _ms(times[count - 1] - times[count]) if count else ""
        gain = f"{times[0] / times[count]:.2f}x" if times[count] else "-"
        yield str(count), _ms(times[count]), saved, gain


def verdict(times: list[float], servers: int) -> str:
    """Returns a sentence on the useful number of servers."""
    useful = next(count for count, time in enumerate(times) if time <= min(times) * (1 + 1e-9))
    if useful == 0:
        return "Servers do not make it faster."
    half = next(count for count, time in enumerate(times) if times[0] - time >= (times[0] - min(times)) / 2)
    text = (
        f"Up to {useful} servers make it faster, by {times[0] / times[useful]:.2f}x in total; more do not. "
        f"Half of that time is saved by {half}."
    )
    if 0 < servers < useful:
        text += (
            f" Adding {useful - servers} to your {servers} would make it {times[servers] / times[useful]:.2f}x faster."
        )
    return text


def _simulation_text(simulation: dict[str, Any]) -> Iterator[str]:
    yield (
        f"Simulated step: {_ms(simulation['compute_s'])} of computation, partitions of "
        f"{simulation['partition_bytes'] / 1024:.0f} KiB.\n"
    )
    rows: list[tuple[str, ...]] = [("PLACEMENT", "BOUND", "FIRST GRADIENT TO LAST SUM", "STEP", "BYTEPS IS FASTER BY")]
    ours = simulation["placements"]["auto"]
    for placement, name in _PLACEMENTS.items():
        result = simulation["placements"][placement]
        ratio = f"{result['step_s'] / ours['step_s']:.2f}x" if ours["step_s"] else "-"
        times = (_ms(result[key]) for key in ("predicted_s", "summed_s", "step_s"))
        rows.append((name, *times, "" if placement == "auto" else ratio))
    yield format_table(rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
