"""Training goes on when the network resets connections (docs/failures.md)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.lost_training import PROGRAM, end_of
from support.resets import reset_one, why_no_resets

pytestmark = pytest.mark.timeout(240)

STEPS = 60


def make_cluster(folder: Path, *, workers: int, servers: int, placement: str, hosted: bool) -> Cluster:
    settings = {"BYTEPS_PLACEMENT": placement, "BYTEPS_NIC_PROBE": "0", "BYTEPS_SHM": "0"}
    return Cluster(folder, workers, servers=servers, hosted=hosted, env=settings)


def train(cluster: Cluster, *, workers: int, servers: int, hosted: bool) -> None:
    if not hosted:
        cluster.start_scheduler()
    for number in range(servers):
        cluster.start_server(number)
    for rank in range(workers):
        env = {"BYTEPS_MACHINE": f"machine-{rank}"}
        cluster.start_rank(rank, str(STEPS), "0.05", program=PROGRAM, env=env)


@pytest.fixture(autouse=True)
def _can_reset() -> None:
    why_not = why_no_resets()
    if why_not is not None:
        pytest.skip(why_not)


@pytest.mark.parametrize(
    ("workers", "servers", "placement", "hosted"),
    [(3, 0, "auto", True), (3, 2, "ps", False)],
    ids=["all-reduce", "servers and a scheduler"],
)
def test_connections_are_reset_all_the_time(
    workers: int, servers: int, placement: str, hosted: bool, tmp_path: Path
) -> None:
    ends = []
    for resets in (False, True):
        folder = tmp_path / str(resets)
        folder.mkdir()
        with make_cluster(folder, workers=workers, servers=servers, placement=placement, hosted=hosted) as cluster:
            train(cluster, workers=workers, servers=servers, hosted=hosted)
            first = cluster["rank 0"]
            first.wait_for("step 2")
            count = 0
            while resets and first.process.poll() is None:
                count += reset_one([member.pid for member in cluster.members.values()], 7 * count)
                time.sleep(0.05)
            ends.append(end_of(cluster, workers=workers))
            lines = [line for member in cluster.members.values() for line in member.output.splitlines()]
            again = [line for line in lines if "connected again after" in line]
            to_scheduler = [line for line in again if f":{cluster.port}: " in line]
            assert not resets or (count > 20 and len(again) > 20 and to_scheduler), cluster.describe()
    assert ends[0] == ends[1]
    assert ends[0][1] == 0, "no server is lost"


def test_a_killed_rank_whose_connection_the_kernel_resets(tmp_path: Path) -> None:
    """It has not read that a server was lost. To the scheduler that is a reset, and known long before the timeout."""
    with make_cluster(tmp_path, workers=3, servers=2, placement="ps", hosted=True) as cluster:
        train(cluster, workers=3, servers=2, hosted=True)
        for rank in range(3):
            cluster[f"rank {rank}"].wait_for("step 2")
        cluster["rank 1"].stop()
        cluster["server 0"].kill()
        cluster["rank 0"].wait_for("training goes on without this server")
        cluster["rank 1"].kill()
        for rank in (0, 2):
            member = cluster[f"rank {rank}"]
            assert member.end(15) != 0, member.describe()
            assert "rank 1 (host" in member.output, member.describe()
            assert "its process has ended" in member.output, member.describe()
