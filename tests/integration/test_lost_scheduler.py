"""Training goes on when the scheduler, a process of its own, is lost (docs/failures.md)."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.lost_training import PROGRAM, end_of

pytestmark = pytest.mark.timeout(240 if "BYTEPS_TEST_STEPS" not in os.environ else 3600)

TIMEOUT_S = 4.0
STEPS = 40
TAKES_OVER = "training goes on, with a scheduler in rank 0 (host"


def make_cluster(folder: Path, *, workers: int = 3, servers: int = 2, **env: str) -> Cluster:
    settings = {"BYTEPS_TIMEOUT_S": str(TIMEOUT_S), "BYTEPS_PLACEMENT": "ps", "BYTEPS_NIC_PROBE": "0"}
    return Cluster(folder, workers, servers=servers, env=settings | env)


def start_all(
    cluster: Cluster, *, workers: int = 3, servers: int = 2, pause_s: float = 0.0, steps: int = STEPS
) -> None:
    cluster.start_scheduler()
    for number in range(servers):
        cluster.start_server(number)
    for rank in range(workers):
        cluster.start_rank(rank, str(steps), str(pause_s), program=PROGRAM)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    with make_cluster(tmp_path_factory.mktemp("undisturbed")) as cluster:
        start_all(cluster)
        return end_of(cluster)[0]


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_instant(seed: int, undisturbed: str, tmp_path: Path) -> None:
    pick = random.Random(seed)
    with make_cluster(tmp_path) as cluster:
        start_all(cluster)
        cluster["rank 0"].wait_for(f"step {pick.randrange(STEPS // 3)}")
        time.sleep(pick.random() / 20)
        cluster["scheduler"].kill()
        assert end_of(cluster)[0] == undisturbed, cluster.describe()
        for name in ("rank 0", "rank 2"):
            assert cluster[name].output.count(TAKES_OVER) == 1, cluster[name].describe()
        for number in range(2):
            assert cluster[f"server {number}"].end() == 0, cluster.describe()


def test_killed_with_a_server(undisturbed: str, tmp_path: Path) -> None:
    """The roots of the server move, which takes the scheduler that has come."""
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, pause_s=0.05)
        cluster["rank 0"].wait_for("step 5")
        cluster["server 1"].kill()
        cluster["scheduler"].kill()
        assert end_of(cluster)[0] == undisturbed, cluster.describe()
        assert "training goes on without this server" in cluster["rank 0"].output, cluster.describe()


def test_stopped_and_continued_later(undisturbed: str, tmp_path: Path) -> None:
    """A scheduler that everybody takes for dead wakes up and can tell nobody anything."""
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, pause_s=0.3)
        cluster["rank 0"].wait_for("step 5")
        scheduler = cluster["scheduler"]
        scheduler.stop()
        for rank in range(3):
            cluster[f"rank {rank}"].wait_for(TAKES_OVER)
        scheduler.go_on()
        assert scheduler.end() != 0, scheduler.describe()
        assert end_of(cluster)[0] == undisturbed, cluster.describe()


def test_new_names_and_barriers_go_to_the_new_scheduler(tmp_path: Path) -> None:
    with make_cluster(tmp_path, workers=2, servers=1) as cluster:
        cluster.start_scheduler()
        cluster.start_server()
        plan = ("init", "step", "pause", "use_names_once", "barrier", "step", "shutdown")
        first, second = (cluster.start_rank(rank, *plan) for rank in range(2))
        for rank in (first, second):
            rank.wait_for("did step")
        cluster["scheduler"].kill()
        for rank in (first, second):
            rank.resume_plan()
        for rank in (first, second):
            assert rank.end() == 0, rank.describe()


def test_a_rank_that_dies_afterwards_is_named(tmp_path: Path) -> None:
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, pause_s=0.05, steps=400)
        cluster["rank 0"].wait_for("step 5")
        cluster["scheduler"].kill()
        cluster["rank 0"].wait_for(TAKES_OVER)
        cluster["rank 2"].kill()
        for rank in (0, 1):
            member = cluster[f"rank {rank}"]
            assert member.end(2 * TIMEOUT_S) != 0, member.describe()
            assert "rank 2 (host" in member.output and f"pid {cluster['rank 2'].pid}" in member.output, (
                member.describe()
            )


def test_rank_0_that_dies_with_the_scheduler_ends_the_job(tmp_path: Path) -> None:
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, pause_s=0.05, steps=400)
        cluster["rank 0"].wait_for("step 5")
        cluster["scheduler"].kill()
        cluster["rank 0"].kill()
        for name in ("rank 1", "rank 2", "server 0"):
            member = cluster[name]
            assert member.end(3 * TIMEOUT_S) != 0, member.describe()
            assert "rank 0 (host" in member.output, member.describe()


def test_rank_0_stays_until_all_are_done(tmp_path: Path) -> None:
    with make_cluster(tmp_path, workers=2, servers=0, BYTEPS_PLACEMENT="auto") as cluster:
        cluster.start_scheduler()
        first = cluster.start_rank(0, "init", "step", "pause", "shutdown")
        second = cluster.start_rank(1, "init", "step", "pause", "shutdown")
        for rank in (first, second):
            rank.wait_for("did step")
        cluster["scheduler"].kill()
        first.resume_plan()
        time.sleep(1.5 * TIMEOUT_S)
        assert first.process.poll() is None, first.describe()
        second.resume_plan()
        for rank in (first, second):
            assert rank.end() == 0, rank.describe()


def test_without_failover_the_job_ends(tmp_path: Path) -> None:
    with make_cluster(tmp_path, BYTEPS_FAILOVER="off") as cluster:
        start_all(cluster, pause_s=0.05, steps=400)
        cluster["rank 0"].wait_for("step 5")
        cluster["scheduler"].kill()
        for rank in range(3):
            member = cluster[f"rank {rank}"]
            assert member.end(2 * TIMEOUT_S) != 0, member.describe()
            assert "lost the connection to the scheduler" in member.output, member.describe()


def test_servers_find_the_job_through_a_scheduler_that_is_started_again(undisturbed: str, tmp_path: Path) -> None:
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, pause_s=0.15)
        first = cluster["rank 0"]
        first.wait_for("step 3")
        cluster["scheduler"].kill()
        cluster["server 0"].kill()
        server = cluster.start_server(2)  # waits for the scheduler
        again = cluster.start_scheduler()
        first.wait_for(f"pid {server.pid}) has joined the job")
        another = cluster.start_server(3)
        first.wait_for(f"pid {another.pid}) has joined the job")
        assert end_of(cluster)[0] == undisturbed, cluster.describe()
        for member in (server, another, again):
            assert member.end() == 0, member.describe()


def test_servers_and_schedulers_are_killed_and_started_again_all_the_time(tmp_path: Path) -> None:
    """A server every 1 to 3 s, the scheduler every 5 s, for as many steps as BYTEPS_TEST_STEPS says."""
    steps = int(os.environ.get("BYTEPS_TEST_STEPS", "150"))
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, steps=steps)
        undisturbed = end_of(cluster, deadline_s=steps)[0]
    pick = random.Random(steps)
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, steps=steps, pause_s=0.06)
        first = cluster["rank 0"]
        first.wait_for("step 5")
        living, kills, schedulers, next_s = [cluster["server 0"], cluster["server 1"]], 0, 0, time.monotonic()
        while first.process.poll() is None:
            if time.monotonic() >= next_s:
                cluster["scheduler"].kill()
                cluster.start_scheduler()
                schedulers, next_s = schedulers + 1, time.monotonic() + 5
            time.sleep(pick.uniform(1, 3))
            living.pop(pick.randrange(2)).kill()
            kills += 1
            living.append(cluster.start_server(1 + kills))
        joined = len(re.findall("has joined the job", first.output))
        print(f"{kills} servers killed, {joined} others joined, {schedulers} schedulers killed")
        assert end_of(cluster, deadline_s=steps)[0] == undisturbed, cluster.describe()
        assert joined >= 2, cluster.describe()
