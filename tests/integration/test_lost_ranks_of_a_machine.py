"""Ranks of one machine are lost in every state: all others raise, and nothing is left."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.cluster import RAISED, Cluster, Member
from support.processes import abstract_sockets, open_files, thread_names

HOST = socket.gethostname()
TIMEOUT_S = 30.0
DEATH_S = 15.0  # a death has to be known by then: not by silence
SILENCE_S = 4.0  # the timeout of tests in which a rank is stopped
# Of survivors. Nobody leaves before all have raised: a rank that has left would be named in its
# turn.
CLEAN_UP = ("then", "pause", "shutdown", "linger")


@dataclass(frozen=True)
class State:
    """The activity of the ranks when one of them, the victim, is lost."""

    victim: tuple[str, ...]
    bystander: tuple[str, ...]  # another rank, which has contributed nothing
    others: tuple[str, ...]
    reached: str  # the victim has written this
    count: int = 1


STATES: Mapping[str, State] = {
    "while all are idle": State(
        ("init", "step", "pause"), ("init", "step", "pause", "step"), ("init", "step", "pause", "step"), "did step"
    ),
    "while others wait for its part": State(
        ("init", "step", "pause"), ("init", "step", "barrier"), ("init", "step", "step"), "did step"
    ),
    "while others wait for a third one, and it serves them": State(
        ("init", "step", "contribute", "pause"),
        ("init", "step", "pause", "step"),
        ("init", "step", "step"),
        "did contribute",
    ),
    "while large tensors are under way": State(("init", "flood"), ("init", "flood"), ("init", "flood"), "did flood", 3),
}
NEVER_CONNECTED = State(("init", "pause"), ("init", "pause", "step"), ("init", "step"), "did init")


def make_cluster(folder: Path, ranks: int, timeout_s: float) -> Cluster:
    env = {"BYTEPS_TIMEOUT_S": str(timeout_s), "BYTEPS_OP_TIMEOUT_S": "120"}
    return Cluster(folder, ranks, hosted=True, env=env)


def start(cluster: Cluster, ranks: int, victim: int, state: State) -> Member:
    """Starts all, and returns the victim when it has got there.

    Its bystander is the rank after it.
    """
    for rank in range(ranks):
        plan = state.bystander if rank == (victim + 1) % ranks else state.others
        cluster.start_rank(rank, *(state.victim if rank == victim else plan + CLEAN_UP))
    lost = cluster[f"rank {victim}"]
    lost.wait_for(state.reached, state.count)
    for survivor in cluster.others(lost.name):
        survivor.wait_for("did init")
    return lost


def sockets_of(cluster: Cluster) -> list[str]:
    return abstract_sockets(f"byteps-{cluster.env['BYTEPS_JOB_ID']}")


def shared_memory_of(member: Member) -> list[str]:
    return [name for name in open_files(member.pid) if "memfd" in name or "/dev/shm" in name]


def check_that_all_raise(cluster: Cluster, lost: Member, since_s: float, limit_s: float) -> None:
    name = f"{lost.name} (host {HOST}, pid {lost.pid})"
    for survivor in cluster.others(lost.name):
        survivor.wait_for("raised ")
        assert name in survivor.raised().message, survivor.describe()
        assert survivor.raised().at_s - since_s < limit_s, survivor.describe()


def check_that_nothing_is_left(cluster: Cluster, lost: Member) -> None:
    """Checks the survivors, which have left the job, and that the victim has left nothing."""
    for survivor in cluster.others(lost.name):
        survivor.resume_plan()
    for survivor in cluster.others(lost.name):
        survivor.wait_for("did shutdown")
        assert shared_memory_of(survivor) == []
        assert [name for name in thread_names(survivor.pid) if name.startswith("bps")] == []
    lost.kill()
    assert sockets_of(cluster) == []
    for survivor in cluster.others(lost.name):
        survivor.let_go()
        assert survivor.end() == RAISED, survivor.describe()
    traces = (cluster.env["BYTEPS_JOB_ID"], "byteps", str(lost.pid))
    assert [path for path in Path("/dev/shm").iterdir() if any(trace in path.name for trace in traces)] == []


def check_sharing(cluster: Cluster, ranks: int) -> None:
    """The checks above would find what there is to find."""
    assert len(sockets_of(cluster)) >= ranks
    for member in cluster.members.values():
        assert [name for name in shared_memory_of(member) if "memfd:byteps" in name], open_files(member.pid)
        assert [name for name in shared_memory_of(member) if "/dev/shm" in name] == []


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("ranks", "victim"), [(2, 0), (2, 1), (4, 0), (4, 2)])
def test_a_killed_rank(state: str, ranks: int, victim: int, tmp_path: Path) -> None:
    with make_cluster(tmp_path, ranks, TIMEOUT_S) as cluster:
        lost = start(cluster, ranks, victim, STATES[state])
        check_sharing(cluster, ranks)
        lost.kill()
        since_s = time.monotonic()
        for survivor in cluster.others(lost.name):
            survivor.resume_plan()
        check_that_all_raise(cluster, lost, since_s, DEATH_S)
        check_that_nothing_is_left(cluster, lost)


@pytest.mark.parametrize(("ranks", "victim"), [(2, 1), (4, 0)])
def test_a_rank_killed_before_anybody_has_connected_to_it(ranks: int, victim: int, tmp_path: Path) -> None:
    with make_cluster(tmp_path, ranks, TIMEOUT_S) as cluster:
        lost = start(cluster, ranks, victim, NEVER_CONNECTED)
        lost.kill()
        since_s = time.monotonic()
        cluster[f"rank {(victim + 1) % ranks}"].resume_plan()
        check_that_all_raise(cluster, lost, since_s, DEATH_S)
        check_that_nothing_is_left(cluster, lost)


@pytest.mark.parametrize(("ranks", "victim", "killed"), [(2, 0, True), (2, 1, True), (4, 2, True), (4, 2, False)])
def test_a_rank_lost_while_it_leaves(ranks: int, victim: int, killed: bool, tmp_path: Path) -> None:
    """Another one is stopped for that moment, so that the victim has to wait for its goodbye."""
    state = State(("init", "step", "pause", "leave"), ("init", "step", "pause", "step"), ("init", "step", "step"), "")
    with make_cluster(tmp_path, ranks, TIMEOUT_S if killed else SILENCE_S) as cluster:
        lost = start(cluster, ranks, victim, state)
        bystander = cluster[f"rank {(victim + 1) % ranks}"]
        for member in (lost, bystander):
            member.wait_for("did step")
        bystander.stop()
        lost.resume_plan()
        lost.wait_for("leaves")
        lost.kill() if killed else lost.stop()
        since_s = time.monotonic()
        assert "did leave" not in lost.output
        bystander.go_on()
        bystander.resume_plan()
        check_that_all_raise(cluster, lost, since_s, DEATH_S)
        check_that_nothing_is_left(cluster, lost)


@pytest.mark.parametrize(("ranks", "victim"), [(2, 0), (2, 1), (4, 0), (4, 2)])
def test_a_rank_killed_while_others_still_join(ranks: int, victim: int, tmp_path: Path) -> None:
    with make_cluster(tmp_path, ranks + 1, TIMEOUT_S) as cluster:  # the last one never comes
        cluster.env["BYTEPS_LOG_LEVEL"] = "info"
        for rank in range(ranks):
            cluster.start_rank(rank, "init", *CLEAN_UP)
        cluster["rank 0"].wait_for("asks to join", ranks)
        lost = cluster[f"rank {victim}"]
        assert len(sockets_of(cluster)) >= ranks
        lost.kill()
        since_s = time.monotonic()
        # Before the start nobody knows more of rank 0 than its place.
        name = "which is part of rank 0" if victim == 0 else f"rank {victim} (host {HOST}, pid {lost.pid})"
        for survivor in cluster.others(lost.name):
            survivor.wait_for("raised ")
            assert name in survivor.raised().message, survivor.describe()
            assert survivor.raised().at_s - since_s < DEATH_S, survivor.describe()
        check_that_nothing_is_left(cluster, lost)


@pytest.mark.parametrize(
    ("state", "victim"), [*((state, 2) for state in STATES), ("while large tensors are under way", 0)]
)
def test_a_stopped_rank(state: str, victim: int, tmp_path: Path) -> None:
    ranks = 4
    with make_cluster(tmp_path, ranks, SILENCE_S) as cluster:
        lost = start(cluster, ranks, victim, STATES[state])
        lost.stop()
        since_s = time.monotonic()
        for survivor in cluster.others(lost.name):
            survivor.resume_plan()
        check_that_all_raise(cluster, lost, since_s, DEATH_S)
        check_that_nothing_is_left(cluster, lost)


def test_a_rank_stopped_before_the_job_has_started(tmp_path: Path) -> None:
    with make_cluster(tmp_path, 3, SILENCE_S) as cluster:
        cluster.env["BYTEPS_LOG_LEVEL"] = "info"
        for rank in (0, 1):
            cluster.start_rank(rank, "init", "step", *CLEAN_UP)
        cluster["rank 0"].wait_for("asks to join", 2)
        lost = cluster["rank 1"]
        lost.stop()
        since_s = time.monotonic()
        cluster.start_rank(2, "init", "step", *CLEAN_UP)
        check_that_all_raise(cluster, lost, since_s, DEATH_S)
        check_that_nothing_is_left(cluster, lost)
