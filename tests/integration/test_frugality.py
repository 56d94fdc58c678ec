"""An idle job costs little, and its cost does not grow with time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cluster import Cluster
from support.processes import resident_bytes, thread_names, wake_ups

IDLE_S = 6.0
TIMEOUT_S = 8.0  # a heartbeat every two seconds
WAKE_UPS_PER_HEARTBEAT = 2  # one to send, one for the answer, and one in each data thread
MARGIN = 2  # a thread that loses the processor for a moment counts as one that wakes up
GROWTH_BYTES = 10 << 20


def data_threads(pid: int) -> int:
    return sum(name.startswith("bps-data") for name in thread_names(pid))


@contextmanager
def job(folder: Path, *plan: str) -> Iterator[Cluster]:
    with Cluster(folder, workers=2, servers=1, env={"BYTEPS_TIMEOUT_S": str(TIMEOUT_S)}) as cluster:
        cluster.start_scheduler()
        cluster.start_server()
        ranks = [cluster.start_rank(rank, *plan) for rank in range(2)]
        yield cluster
        for rank in ranks:
            rank.resume_plan()
        for member in cluster.members.values():
            assert member.end() == 0, cluster.describe()


def test_idle_processes_wake_up_for_heartbeats_only(tmp_path: Path) -> None:
    with job(tmp_path, "init", "step*3", "barrier", "pause") as cluster:
        for rank in range(2):
            cluster[f"rank {rank}"].wait_for("did barrier")
        time.sleep(0.5)  # the last words are written
        before = {name: wake_ups(member.pid) for name, member in cluster.members.items()}
        time.sleep(IDLE_S)
        during = {name: wake_ups(member.pid) - before[name] for name, member in cluster.members.items()}
        threads = {name: data_threads(member.pid) for name, member in cluster.members.items()}
    heartbeats = IDLE_S / (TIMEOUT_S / 4) + 1
    for name, count in during.items():
        nodes = 3 if name == "scheduler" else 1
        assert count <= MARGIN * nodes * heartbeats * (WAKE_UPS_PER_HEARTBEAT + threads[name]), during


def test_memory_does_not_grow_with_the_number_of_rounds(tmp_path: Path) -> None:
    assert max(growth(tmp_path, "step*20", "step*200").values()) < GROWTH_BYTES


def test_memory_does_not_grow_with_the_number_of_names(tmp_path: Path) -> None:
    """20,000 names are more than a rank keeps; each more takes nothing, where it took about 1 KB."""
    assert max(growth(tmp_path, "use_names_once*5", "use_names_once*8").values()) < GROWTH_BYTES


def growth(folder: Path, first: str, then: str) -> dict[str, int]:
    """Returns how many bytes the memory of each process grows by the second part of its plan."""
    with job(folder, "init", first, "barrier", "pause", then, "barrier", "pause") as cluster:
        for rank in range(2):
            cluster[f"rank {rank}"].wait_for("did barrier")
        before = {name: resident_bytes(member.pid) for name, member in cluster.members.items()}
        for rank in range(2):
            cluster[f"rank {rank}"].resume_plan()
        for rank in range(2):
            cluster[f"rank {rank}"].wait_for("did barrier", 2)
        return {name: resident_bytes(member.pid) - before[name] for name, member in cluster.members.items()}
