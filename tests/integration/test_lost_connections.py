"""Training goes on when the network resets connections (docs/failures.md)."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.lost_training import PROGRAM, end_of

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


def reset_one(cluster: Cluster, number: int) -> bool:
    """Resets a TCP connection between two processes of the job."""
    pids = {member.pid for member in cluster.members.values()}
    listing = subprocess.run(["ss", "-tnpH", "state", "established"], capture_output=True, text=True, check=True)
    found = []
    for line in listing.stdout.splitlines():
        fields = line.split()
        owners = {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
        if owners & pids:
            found.append([address.rpartition(":")[2] for address in fields[2:4]])
    if not found:
        return False
    here, there = sorted(found)[number % len(found)]
    killed = subprocess.run(
        ["ss", "-KtnH", "sport", "=", f":{here}", "dport", "=", f":{there}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return here in killed.stdout


@pytest.fixture(autouse=True)
def _can_reset() -> None:
    if shutil.which("ss") is None:
        pytest.skip("no command ss (Debian: iproute2), which resets connections")
    probe = subprocess.run(["ss", "-KtnH", "sport", "=", ":1"], capture_output=True, text=True, check=False)
    if "not permitted" in probe.stderr or probe.returncode != 0:
        pytest.skip(f"ss -K cannot reset connections here: {probe.stderr.strip()}")


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
                count += reset_one(cluster, 7 * count)
                time.sleep(0.05)
            ends.append(end_of(cluster, workers=workers))
            lines = [line for member in cluster.members.values() for line in member.output.splitlines()]
            again = [line for line in lines if "connected again after" in line]
            to_scheduler = [line for line in again if f":{cluster.port}: " in line]
            assert not resets or (count > 20 and len(again) > 20 and to_scheduler), cluster.describe()
    assert ends[0] == ends[1]
    assert ends[0][1] == 0, "no server is lost"
