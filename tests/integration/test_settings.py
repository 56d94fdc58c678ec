"""Invalid settings in real processes: one reports the error, and the others do not hang."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.cluster import RAISED, Cluster

START_TIMEOUT_S = 10.0


def make_cluster(folder: Path) -> Cluster:
    return Cluster(folder, workers=2, servers=1, env={"BYTEPS_START_TIMEOUT_S": str(START_TIMEOUT_S)})


def test_a_port_that_another_process_has(tmp_path: Path) -> None:
    with make_cluster(tmp_path) as cluster, socket.create_server(("127.0.0.1", 0)) as taken:
        cluster.env["DMLC_PS_ROOT_PORT"] = str(taken.getsockname()[1])
        scheduler = cluster.start_scheduler()
        assert scheduler.end() == 1
        (line,) = scheduler.output.splitlines()
        assert f"127.0.0.1:{taken.getsockname()[1]}" in line and "choose another port" in line, line


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("DMLC_PS_ROOT_URI", "no-such-host.invalid", "no-such-host.invalid"),
        ("DMLC_INTERFACE", "nosuch0", "nosuch0"),
        ("DMLC_NODE_HOST", "no-such-host.invalid", "DMLC_NODE_HOST"),
        ("DMLC_NODE_HOST", "192.0.2.77", "this machine does not have that address"),
    ],
)
def test_addresses_that_do_not_exist(setting: str, value: str, message: str, tmp_path: Path) -> None:
    with make_cluster(tmp_path) as cluster:
        cluster.env[setting] = value
        rank, server = cluster.start_rank(0, "init"), cluster.start_server()
        assert rank.end(2 * START_TIMEOUT_S) == RAISED
        assert message in rank.raised().message
        assert server.end(2 * START_TIMEOUT_S) != 0
        line = server.output.splitlines()[-1]  # before it, a line that it waits for the host name
        assert line.startswith("byteps server: ") and message in line, line


def test_all_faults_of_the_environment_at_once(tmp_path: Path) -> None:
    faults = {
        "BYTEPS_TIMEOUT_S": "soon",
        "BYTEPS_PARTITION_BYTES": "12",
        "BYTEPS_SERVER_ENGINE_THREAD": "65",
        "BYTEPS_PLACEMENT": "anywhere",
        "DMLC_PS_ROOT_PORT": "70000",
    }
    with make_cluster(tmp_path) as cluster:
        cluster.env |= faults
        rank, server = cluster.start_rank(0, "init"), cluster.start_server()
        rank.check_raised("InvalidArgumentError", *faults, *faults.values())
        assert server.end() == 2
        assert all(name in server.output for name in faults)


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"DMLC_NUM_WORKER": "3"}, "expects 3 workers"),
        ({"DMLC_WORKER_ID": "0"}, "its number is taken by rank 0 (host "),
    ],
)
def test_a_rank_that_contradicts_the_others(difference: dict[str, str], message: str, tmp_path: Path) -> None:
    """All are told who contradicts whom."""
    with make_cluster(tmp_path) as cluster:
        cluster.env["BYTEPS_LOG_LEVEL"] = "info"
        scheduler, good = cluster.start_scheduler(), cluster.start_rank(0, "init")
        scheduler.wait_for("asks to join")
        bad = cluster.start_rank(1, "init", env=difference)
        for rank in (good, bad):
            rank.check_raised("InvalidArgumentError", message, f"pid {bad.pid})")
        assert scheduler.end() == 2
        assert message in scheduler.output.splitlines()[-1]
