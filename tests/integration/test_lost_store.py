"""Servers that store tensors are lost, and every contribution counts exactly once (docs/failures.md)."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.lost_training import stop_until_lost

pytestmark = pytest.mark.timeout(240)

PROGRAM = Path(__file__).parent / "lost_store_rank.py"
STEPS = 60
WORKERS = 3


def make_cluster(folder: Path, *, servers: int, **env: str) -> Cluster:
    settings = {"BYTEPS_TIMEOUT_S": "4", "BYTEPS_PLACEMENT": "ps", "BYTEPS_NIC_PROBE": "0"}
    return Cluster(folder, WORKERS, servers=servers, hosted=True, env=settings | env)


def start_all(cluster: Cluster, *, servers: int, staleness: str, machines: int = 1) -> None:
    for number in range(servers):
        cluster.start_server(number)
    for rank in range(WORKERS):
        env = {"BYTEPS_MACHINE": f"machine-{rank % machines}"}
        cluster.start_rank(rank, str(STEPS), "0.02", staleness, program=PROGRAM, env=env)


def check_end(cluster: Cluster, *, lost: int) -> None:
    for rank in range(WORKERS):
        member = cluster[f"rank {rank}"]
        assert member.end(120) == 0, member.describe()
        match = re.search(r"all is there, servers lost (\d+)", member.output)
        assert match is not None and int(match[1]) == lost, member.describe()


@pytest.mark.parametrize("staleness", ["0", "2", "inf"])
@pytest.mark.parametrize("machines", [1, WORKERS])
def test_killed_at_any_instant_one_after_the_other(staleness: str, machines: int, tmp_path: Path) -> None:
    pick = random.Random(f"{staleness} {machines}")
    with make_cluster(tmp_path, servers=3) as cluster:
        start_all(cluster, servers=3, staleness=staleness, machines=machines)
        for lost, number in enumerate(pick.sample(range(3), 3)):
            cluster[f"rank {pick.randrange(WORKERS)}"].wait_for(f"step {3 + 12 * lost + pick.randrange(8)}")
            time.sleep(pick.random() / 20)
            cluster[f"server {number}"].kill()
        check_end(cluster, lost=3)


def test_all_at_once(tmp_path: Path) -> None:
    with make_cluster(tmp_path, servers=2) as cluster:
        start_all(cluster, servers=2, staleness="inf")
        cluster["rank 0"].wait_for("step 9")
        for number in range(2):
            cluster[f"server {number}"].kill()
        check_end(cluster, lost=2)


def test_stopped_and_continued_later(tmp_path: Path) -> None:
    """A server that everybody takes for dead wakes up and must not add anything."""
    with make_cluster(tmp_path, servers=2) as cluster:
        start_all(cluster, servers=2, staleness="2")
        cluster["rank 0"].wait_for("step 5")
        stop_until_lost(cluster, 1)
        check_end(cluster, lost=1)
