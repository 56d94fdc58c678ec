"""What the measures in the lab share: one table for (n, k) workers and servers with one lab for several k."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.bounds import parameter_server_bound_s, placement_bound_s
from benchmarks.harness.alternate import Figures, alternate
from benchmarks.harness.results import Case
from benchmarks.lab import Lab
from benchmarks.lab.iperf import goodput_mbps
from benchmarks.peers import launch
from benchmarks.peers.places import OnHosts

TENSOR_BYTES = 64 << 20
FORCED_PS = {"BYTEPS_PLACEMENT": "ps"}
FORCED_ALL_REDUCE = {"BYTEPS_PLACEMENT": "allreduce"}


def bytes_per_s(mbps: float) -> float:
    return mbps * 1e6 / 8


def ps_name(servers: int) -> str:
    return f"byteps, forced PS, k = {servers}"


def measure_shapes(
    rate_mbps: float,
    workers: int,
    all_servers: Sequence[int],
    *,
    ps_turns: Mapping[int, int] | None = None,
    deadline_s: float,
) -> dict[int, Case]:
    """All k of one n take turns in one lab with the peers, which have no use for servers; one case for each k.

    Args:
        rate_mbps: of all links.
        workers: n.
        all_servers: the values of k.
        ps_turns: for each k with which the parameter server is forced, its turns: it is slow.
        deadline_s: for all.
    """
    ps_turns = ps_turns or {}
    with Lab([rate_mbps] * (workers + max([*all_servers, *ps_turns]))) as lab:
        goodput = statistics.median(goodput_mbps(lab))
        contenders = [launch.byteps(OnHosts(lab, workers, k), _auto(k)) for k in all_servers]
        peers = OnHosts(lab, workers)
        contenders += [launch.gloo(peers), launch.openmpi(peers, "OpenMPI ring")]
        contenders += [launch.byteps(peers, "byteps, forced all-reduce", FORCED_ALL_REDUCE)]
        contenders += [launch.byteps(OnHosts(lab, workers, k), ps_name(k), FORCED_PS) for k in ps_turns]
        figures = alternate(
            contenders,
            {"bytes": TENSOR_BYTES},
            deadline_s=deadline_s,
            fewer_turns={ps_name(k): turns for k, turns in ps_turns.items()},
        )
    return {k: _case(rate_mbps, workers, k, goodput, figures) for k in {*all_servers, *ps_turns}}


def _auto(servers: int) -> str:
    return f"byteps, k = {servers}"


def _case(rate_mbps: float, workers: int, servers: int, goodput: float, figures: Mapping[str, Figures]) -> Case:
    rate = bytes_per_s(goodput)
    mine: dict[str, Figures] = {}
    if _auto(servers) in figures:
        mine["byteps"] = figures[_auto(servers)]
    mine |= {name: each for name, each in figures.items() if not name.startswith("byteps, k") and "PS" not in name}
    if ps_name(servers) in figures:
        mine[ps_name(servers)] = figures[ps_name(servers)]
    ring_s = placement_bound_s(TENSOR_BYTES, [rate] * workers)
    bounds_s = {name: ring_s for name in mine if name != "byteps"}
    if servers:
        bounds_s[ps_name(servers)] = parameter_server_bound_s(TENSOR_BYTES, workers, servers, rate)
    return Case(
        f"({workers}, {servers}) at {rate_mbps:g} Mbit/s",
        placement_bound_s(TENSOR_BYTES, [rate] * workers, [rate] * servers),
        f"iperf3: {goodput:.1f} Mbit/s; others beside the bounds of their own placements",
        mine,
        gigabytes=workers * TENSOR_BYTES / 1e9,
        bounds_s=bounds_s,
    )
