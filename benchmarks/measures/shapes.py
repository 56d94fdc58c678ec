"""Measures in the lab: a table by (n, k) workers and servers, with one lab for several k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.bounds import parameter_server_bound_s, placement_bound_s
from benchmarks.harness.alternate import Figures, alternate
from benchmarks.harness.results import Case
from benchmarks.lab import UNLIMITED, Lab
from benchmarks.lab.iperf import best_share, goodput_mbps
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts

TENSOR_BYTES = 64 << 20
FORCED_PS = {"BYTEPS_PLACEMENT": "ps"}
FORCED_ALL_REDUCE = {"BYTEPS_PLACEMENT": "allreduce"}
_OPENMPI = "OpenMPI ring"
_ALL_REDUCE = "byteps, forced all-reduce"


def bytes_per_s(mbps: float) -> float:
    return mbps * 1e6 / 8


def ps_name(servers: int) -> str:
    return f"byteps, forced PS, k = {servers}"


def measure_shapes(
    rate_mbps: float,
    workers: int,
    all_servers: Sequence[int],
    *,
    ps_turns: Mapping[int, int],
    other_turns: int = 5,
    calls: int = 1,
    deadline_s: float,
) -> dict[int, Case]:
    """Measures all k of one n in turns with the peers, which use no servers. One case for each k.

    Args:
        rate_mbps: of all links; may be UNLIMITED.
        workers: n.
        all_servers: the values of k.
        ps_turns: for each k with which the parameter server is forced, its turns: it is slow.
        other_turns: of OpenMPI and of the forced all-reduce.
        calls: of a turn.
        deadline_s: for all.
    """
    turns = {_OPENMPI: other_turns, _ALL_REDUCE: other_turns} | {ps_name(k): each for k, each in ps_turns.items()}
    with Lab([rate_mbps] * (workers + max([*all_servers, *ps_turns]))) as lab:
        before = _goodput_mbps(lab, rate_mbps)
        contenders = [launch.byteps(OnHosts(lab, workers, k), _auto(k)) for k in all_servers]
        peers = OnHosts(lab, workers)
        contenders += [launch.gloo(peers), launch.openmpi(peers, _OPENMPI)]
        contenders += [launch.byteps(peers, _ALL_REDUCE, FORCED_ALL_REDUCE, plain=False)]
        contenders += [launch.byteps(OnHosts(lab, workers, k), ps_name(k), FORCED_PS, plain=False) for k in ps_turns]
        figures = alternate(
            contenders,
            {"bytes": TENSOR_BYTES, "calls": calls},
            deadline_s=deadline_s,
            fewer_turns=turns,
            plain_turns=3 if rate_mbps >= 1000 else 1,  # of seconds each
        )
        goodput = max(before, _goodput_mbps(lab, rate_mbps))
    return {k: _case(rate_mbps, workers, k, goodput, figures) for k in {*all_servers, *ps_turns}}


def _goodput_mbps(lab: Lab, rate_mbps: float) -> float:
    return max(goodput_mbps(lab)) if rate_mbps == UNLIMITED else rate_mbps * best_share(lab)


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
    case = Case(
        f"({workers}, {servers}) " + ("without a limit" if rate_mbps == UNLIMITED else f"at {rate_mbps:g} Mbit/s"),
        placement_bound_s(TENSOR_BYTES, [rate] * workers, [rate] * servers),
        f"iperf3, best of two runs: {goodput:.1f} Mbit/s; others beside the bounds of their own placements",
        mine,
        gigabytes=workers * TENSOR_BYTES / 1e9,
        bounds_s=bounds_s,
    )
    fastest = min((ratio for name in mine if (ratio := case.over_bound(name))), default=1.0)
    if fastest < 1:  # the disturbance was larger for iperf3 than for the contenders
        case.notes["the bound is too high by at least"] = f"{100 * (1 - fastest):.1f} %: somebody was faster"
    return case
