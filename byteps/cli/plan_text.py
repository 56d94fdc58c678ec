"""The text of `byteps plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from byteps.cli.plan_cluster import PLACEMENTS
from byteps.cli.table import format_table


def as_text(report: dict[str, Any]) -> Iterator[str]:
    machines, servers = report["machines_mbps"], report["servers_mbps"]
    yield (
        f"{len(machines)} worker machines ({report['gpus']} GPUs) and {len(servers)} servers sum "
        f"{report['model_bytes'] / 1e6:.0f} MB in each step."
    )
    yield from (f"Assumed: {each}." for each in report["assumptions"])
    yield ""
    yield format_table([("SITE", "CARD", "SHARE", "MB"), *_share_rows(report)])
    yield ""
    yield from _placements(report)
    yield ""
    yield "The least time, by number of servers:\n"
    yield format_table([("SERVERS", "TIME", "SPEEDUP"), *_server_rows(report)])
    yield f"\n{verdict(report['by_servers_s'], report['useful_servers'], report['half_useful_servers'], len(servers))}"


def _share_rows(report: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields a row for each group of equal neighbours."""
    machines, servers, shares = report["machines_mbps"], report["servers_mbps"], report["shares"]
    names = [("machine", i) for i in range(len(machines))] + [("server", i) for i in range(len(servers))]
    sites = zip(names, [*machines, *servers], shares, strict=True)
    for (kind, mbps, share), group in groupby(sites, key=lambda site: (site[0][0], site[1], round(site[2], 9))):
        numbers = [number for (_, number), _, _ in group]
        span = f"{kind} {numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "")
        yield span, f"{mbps / 1e3:g} Gbit/s", f"{share:.2%}", f"{share * report['model_bytes'] / 1e6:.1f}"


def _placements(report: dict[str, Any]) -> Iterator[str]:
    simulation = report["simulation"]
    yield (
        f"A simulated step of {_ms(simulation['compute_s'])} of computation. The optimizer waits for all sums, "
        "CrossBarrier for each where it is needed:\n"
    )
    if larger := simulation["placements"]["auto"]["larger_partition_bytes"]:
        yield f"With partitions of {larger / 1024:.0f} KiB, because a job's are too many to simulate.\n"
    rows: list[tuple[str, ...]] = [
        ("PLACEMENT", "BOUND", "FIRST GRADIENT TO LAST SUM", "OPTIMIZER", "CROSSBARRIER", "BYTEPS IS FASTER BY")
    ]
    ours = simulation["placements"]["auto"]
    for placement, name in PLACEMENTS.items():
        result = simulation["placements"][placement]
        ratios = [result[key] / ours[key] if ours[key] else 1.0 for key in ("plain_step_s", "step_s")]
        times = (_ms(result[key]) for key in ("predicted_s", "plain_summed_s", "plain_step_s", "step_s"))
        gain = "" if placement == "auto" else " and ".join(f"{ratio:.2f}x" for ratio in ratios)
        rows.append((name, *times, gain))
    yield format_table(rows)


def _server_rows(report: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    times = report["by_servers_s"]
    for count, seconds in times.items():
        yield str(count), _ms(seconds), f"{times[0] / seconds:.2f}x" if seconds else "-"


def verdict(times: Mapping[int, float], useful: int, half: int, servers: int) -> str:
    """Returns a sentence on the useful number of servers."""
    if useful == 0:
        return "Servers do not make it faster."
    text = f"Up to {useful} servers make it faster, by {times[0] / times[useful]:.2f}x in total; more do not."
    if half < useful:
        text += f" Half of that time is saved by {half}."
    if 0 < servers < useful:
        text += (
            f" Adding {useful - servers} to your {servers} would make it {times[servers] / times[useful]:.2f}x faster."
        )
    return text


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
