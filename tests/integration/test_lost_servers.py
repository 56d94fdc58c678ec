"""Training goes on when servers are lost, and no bit of the result differs (docs/failures.md)."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from support.cluster import Cluster, Member, wait_until
from support.hang import hanging
from support.lost_training import PROGRAM, end_of, stop_until_lost

pytestmark = pytest.mark.timeout(240 if "BYTEPS_TEST_STEPS" not in os.environ else 3600)

TIMEOUT_S = 4.0
STEPS = 60


def make_cluster(folder: Path, *, workers: int = 3, servers: int = 2, **env: str) -> Cluster:
    settings = {"BYTEPS_TIMEOUT_S": str(TIMEOUT_S), "BYTEPS_PLACEMENT": "ps", "BYTEPS_NIC_PROBE": "0"}
    return Cluster(folder, workers, servers=servers, hosted=True, env=settings | env)


def start_all(
    cluster: Cluster, *, workers: int = 3, servers: int = 2, pause_s: float = 0.0, steps: int = STEPS
) -> None:
    for number in range(servers):
        cluster.start_server(number)
    for rank in range(workers):
        cluster.start_rank(rank, str(steps), str(pause_s), program=PROGRAM)


def is_used(server: Member) -> bool:
    """Whether the server sums: only messages of ranks wake its data threads."""
    switches = 0
    for status in Path(f"/proc/{server.pid}/task").glob("*/status"):
        text = status.read_text()
        if "Name:\tbps-data-" in text:
            switches += int(re.search(r"\nvoluntary_ctxt_switches:\t(\d+)", text)[1])  # type: ignore[index]
    return switches > 100


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    with make_cluster(tmp_path_factory.mktemp("undisturbed")) as cluster:
        start_all(cluster)
        digest, lost = end_of(cluster)
        assert lost == 0
        return digest


@pytest.mark.parametrize("placement", ["ps", "auto"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_killed_at_any_instant_one_after_the_other(
    transport: str, placement: str, undisturbed: str, tmp_path: Path
) -> None:
    pick = random.Random(f"{transport} {placement}")
    env = {"BYTEPS_SHM": str(int(transport == "shm")), "BYTEPS_PLACEMENT": placement}
    with make_cluster(tmp_path, **env) as cluster:
        start_all(cluster)
        for number in pick.sample(range(2), 2):
            cluster["rank 0"].wait_for(f"step {pick.randrange(5, STEPS // 3) + number}")
            time.sleep(pick.random() / 20)
            cluster[f"server {number}"].kill()
        digest, lost = end_of(cluster)
        assert digest == undisturbed, cluster.describe()
        assert lost == 2, cluster.describe()
        assert "training goes on without this server" in cluster["rank 0"].output


def test_stopped_and_continued_later(undisturbed: str, tmp_path: Path) -> None:
    """A server that everybody takes for dead wakes up and must not disturb the sums."""
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, pause_s=0.05)
        cluster["rank 0"].wait_for("step 5")
        stop_until_lost(cluster, 1)
        digest, lost = end_of(cluster)
        assert (digest, lost) == (undisturbed, 1), cluster.describe()


def test_a_data_thread_hangs(undisturbed: str, tmp_path: Path) -> None:
    with make_cluster(tmp_path) as cluster:
        start_all(cluster)
        cluster["rank 0"].wait_for("step 5")
        with hanging(cluster["server 0"].pid, "bps-data-0"):
            cluster["rank 0"].wait_for("training goes on without this server")
            digest, lost = end_of(cluster)
        assert (digest, lost) == (undisturbed, 1), cluster.describe()


def test_without_failover_the_job_ends(tmp_path: Path) -> None:
    with make_cluster(tmp_path, BYTEPS_FAILOVER="off") as cluster:
        start_all(cluster, pause_s=0.05)
        cluster["rank 0"].wait_for("step 5")
        server = cluster["server 0"]
        server.kill()
        for rank in range(3):
            member = cluster[f"rank {rank}"]
            assert member.end(2 * TIMEOUT_S) != 0, member.describe()
            assert f"pid {server.pid})" in member.output, member.describe()


def test_a_rank_that_dies_ends_the_job_also_after_a_server_has(tmp_path: Path) -> None:
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, pause_s=0.05)
        cluster["rank 0"].wait_for("step 5")
        cluster["server 0"].kill()
        cluster["rank 0"].wait_for("training goes on without this server")
        cluster["rank 2"].kill()
        for rank in (0, 1):
            member = cluster[f"rank {rank}"]
            assert member.end(2 * TIMEOUT_S) != 0, member.describe()
            assert "rank 2 (host" in member.output and f"pid {cluster['rank 2'].pid}" in member.output, (
                member.describe()
            )


def test_a_rank_that_ends_stays_while_others_may_need_its_results(tmp_path: Path) -> None:
    with make_cluster(tmp_path, workers=2, servers=1) as cluster:
        cluster.start_server()
        first = cluster.start_rank(0, "init", "step", "shutdown")
        second = cluster.start_rank(1, "init", "step", "pause", "step")
        first.wait_for("did step")
        second.resume_plan()
        second.check_raised("PeerLostError", "rank 0 (host", "has left the job")
        assert first.end() == 0, first.describe()


def test_a_rank_that_ends_does_not_wait_for_ever(tmp_path: Path) -> None:
    with make_cluster(tmp_path, workers=2, servers=1) as cluster:
        cluster.start_server()
        first = cluster.start_rank(0, "init", "step", "shutdown")
        second = cluster.start_rank(1, "init", "step", "pause", "shutdown")
        assert first.end(4 * TIMEOUT_S) == 0, first.describe()
        assert "did pause" not in second.output
        second.resume_plan()
        assert second.end() == 0, second.describe()


def test_other_servers_come_while_the_job_runs(undisturbed: str, tmp_path: Path) -> None:
    """One in place of a lost server, and one more; both sum, and may be lost as well."""
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, pause_s=0.05)
        cluster["rank 0"].wait_for("step 5")
        cluster["server 0"].kill()
        newcomers = [cluster.start_server(number) for number in (2, 3)]
        for newcomer in newcomers:
            cluster["rank 0"].wait_for(f"pid {newcomer.pid}) has joined the job")
        for newcomer in newcomers:
            wait_until(partial(is_used, newcomer), cluster.describe)
        cluster["server 1"].kill()
        newcomers[0].kill()
        digest, lost = end_of(cluster)
        assert (digest, lost) == (undisturbed, 3), cluster.describe()
        assert newcomers[1].end() == 0, newcomers[1].describe()


def test_servers_are_killed_and_replaced_all_the_time(tmp_path: Path) -> None:
    """One every 1 to 3 s, for as many steps as BYTEPS_TEST_STEPS says; 9,000 take about ten minutes."""
    steps = int(os.environ.get("BYTEPS_TEST_STEPS", "150"))
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, steps=steps)
        undisturbed, _ = end_of(cluster, deadline_s=steps)
    pick = random.Random(steps)
    with make_cluster(tmp_path) as cluster:
        start_all(cluster, steps=steps, pause_s=0.06)
        first = cluster["rank 0"]
        first.wait_for("step 5")
        living, kills = [cluster["server 0"], cluster["server 1"]], 0
        while first.process.poll() is None:
            time.sleep(pick.uniform(1, 3))
            living.pop(pick.randrange(2)).kill()
            kills += 1
            living.append(cluster.start_server(1 + kills))
        digest, lost = end_of(cluster, deadline_s=steps)
        print(f"{kills} servers killed, {lost} of them had joined", *re.findall("holds .*", first.output), sep="; ")
        assert digest == undisturbed, cluster.describe()
        assert lost >= 3, cluster.describe()
        before, after = re.findall(r"holds (\d+) descriptors and (\d+) MiB", first.output)
        assert int(after[0]) <= int(before[0]) + 4, cluster.describe()
        assert int(after[1]) <= 1.1 * int(before[1]) + 8, cluster.describe()


def test_a_job_without_servers_takes_some(undisturbed: str, tmp_path: Path) -> None:
    with make_cluster(tmp_path, servers=0, BYTEPS_PLACEMENT="auto") as cluster:
        for rank in range(3):  # on one machine, servers would get nothing
            env = {"BYTEPS_MACHINE": f"machine-{rank}"}
            cluster.start_rank(rank, str(STEPS), "0.05", program=PROGRAM, env=env)
        cluster["rank 0"].wait_for("step 5")
        server = cluster.start_server(0)
        cluster["rank 0"].wait_for(f"pid {server.pid}) has joined the job")
        wait_until(partial(is_used, server), cluster.describe)
        server.kill()
        digest, lost = end_of(cluster)
        assert (digest, lost) == (undisturbed, 1), cluster.describe()


def test_bpslaunch_starts_a_lost_server_again(tmp_path: Path) -> None:
    settings = {"BYTEPS_PLACEMENT": "ps", "BYTEPS_FORCE_DISTRIBUTED": "1"}
    command = [
        "bpslaunch",
        "--nproc-per-node",
        "2",
        "--servers",
        "2",
        "--",
        sys.executable,
        PROGRAM,
        str(STEPS),
        "0.05",
    ]
    log = tmp_path / "log"
    with log.open("w") as output:
        launcher = subprocess.Popen(command, env=os.environ | settings, stdout=output, stderr=output)
    try:
        wait_until(lambda: "step 5" in log.read_text(), log.read_text)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        servers = [int(pid) for pid in children if "byteps.server" in Path(f"/proc/{pid}/cmdline").read_text()]
        assert len(servers) == 2, log.read_text()
        os.kill(servers[0], signal.SIGKILL)
        assert launcher.wait(120) == 0, log.read_text()
    finally:
        launcher.terminate()
        launcher.wait()
    assert "was killed by SIGKILL; the job may go on without it" in log.read_text()
    assert log.read_text().count("servers lost 1") == 2, log.read_text()
    assert "starts again; restarts left: 2" in log.read_text(), log.read_text()
    assert "has joined the job" in log.read_text(), log.read_text()
