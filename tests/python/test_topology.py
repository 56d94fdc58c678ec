"""Cores and NUMA nodes, read from made-up /sys trees and shared out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from byteps.launcher.topology import Machine, bound_to, parse_cpu_list, read_machine, share_cores, threads_of


def make_sys(root: Path, nodes: dict[int, str], siblings: dict[int, str]) -> Path:
    for number, cpus in nodes.items():
        directory = root / f"devices/system/node/node{number}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(f"{cpus}\n")
    for cpu, group in siblings.items():
        directory = root / f"devices/system/cpu/cpu{cpu}/topology"
        directory.mkdir(parents=True)
        (directory / "thread_siblings_list").write_text(f"{group}\n")
    return root


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set()), ("0-1,4-5", {0, 1, 4, 5})]
)
def test_parse_cpu_list(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


def test_hyperthreads_of_one_core_count_once(tmp_path: Path) -> None:
    root = make_sys(tmp_path, {0: "0-3"}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert read_machine(frozenset(range(4)), root) == Machine((frozenset(range(4)),), 2)


def test_only_allowed_cpus_count_and_nodes_keep_their_order(tmp_path: Path) -> None:
    root = make_sys(tmp_path, {0: "0-1", 2: "4-5", 10: "8-9"}, {})
    machine = read_machine(frozenset({0, 4, 5, 8}), root)
    assert machine == Machine((frozenset({0}), frozenset({4, 5}), frozenset({8})), 4)


def test_without_sys_there_is_one_node(tmp_path: Path) -> None:
    assert read_machine(frozenset({0, 1}), tmp_path) == Machine((frozenset({0, 1}),), 2)


NODES = tuple(frozenset(range(4 * i, 4 * i + 4)) for i in range(4))


@pytest.mark.parametrize(
    ("nodes", "processes", "expected"),
    [
        (NODES[:1], 4, [None] * 4),  # binding has no benefit
        (NODES[:2], 1, [None]),  # would lose half the machine
        (NODES[:2], 2, [NODES[0], NODES[1]]),
        (NODES[:2], 4, [NODES[0], NODES[0], NODES[1], NODES[1]]),
        (NODES, 2, [NODES[0] | NODES[1], NODES[2] | NODES[3]]),
        (NODES[:2], 3, [None] * 3),  # one rank would have a whole node
        ((NODES[0], frozenset({9})), 2, [None] * 2),
    ],
)
def test_processes_get_whole_nodes_or_are_not_bound(
    nodes: tuple[frozenset[int], ...], processes: int, expected: list[frozenset[int] | None]
) -> None:
    assert share_cores(Machine(nodes, 16), processes) == expected


@pytest.mark.parametrize(("cores", "processes", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1)])
def test_threads(cores: int, processes: int, threads: int) -> None:
    assert threads_of(Machine(NODES[:1], cores), processes) == threads


def test_binding_ends_with_the_block() -> None:
    own = os.sched_getaffinity(0)
    one = frozenset({min(own)})
    with bound_to(one):
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == own
