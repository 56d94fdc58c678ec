"""Processes die or are silent: all others report who it was, in bounded time, and end."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.cluster import RAISED, Cluster
from support.hang import hanging
from support.processes import virtual_bytes

from byteps import _core

TIMEOUT_S = 3.0
START_TIMEOUT_S = 8.0  # enough for a busy machine to start a few processes
HOST = socket.gethostname()


def make_cluster(folder: Path, workers: int, *, hosted: bool, start_timeout_s: float = 60.0) -> Cluster:
    # Ranks of one machine do without the server unless they are told to use it.
    env = {
        "BYTEPS_TIMEOUT_S": str(TIMEOUT_S),
        "BYTEPS_START_TIMEOUT_S": str(start_timeout_s),
        "BYTEPS_PLACEMENT": "ps",
        "BYTEPS_FAILOVER": "0",  # with it, a server's loss ends no job: test_lost_servers.py
    }
    return Cluster(folder, workers, servers=1, hosted=hosted, env=env)


def start_all(cluster: Cluster, plans: Sequence[Sequence[str]]) -> None:
    if not cluster.hosted:
        cluster.start_scheduler()
    cluster.start_server()
    for rank, plan in enumerate(plans):
        cluster.start_rank(rank, *plan)


def name_of(cluster: Cluster, victim: str) -> str:
    """Returns the victim's name in messages."""
    if victim == "scheduler":
        return f"scheduler at 127.0.0.1:{cluster.port}"
    return f"{victim} (host {HOST}, pid {cluster[victim].pid})"


def check_that_others_end(cluster: Cluster, victim: str, name: str, since_s: float, causes: Sequence[str]) -> None:
    """Fails unless all others end within twice the timeout and report `name` and a cause."""
    limit_s = 2 * TIMEOUT_S
    for member in cluster.others(victim):
        code = member.end(max(0.0, since_s + limit_s - time.monotonic()))
        if member.name.startswith("rank"):
            assert code == RAISED, member.describe()
            message = member.raised().message
        else:
            assert code == 1, member.describe()
            (message,) = [line for line in member.output.splitlines() if not line.startswith("I ")]
            assert message.startswith(f"byteps {member.name.split()[0]}: "), message
        assert name in message, f"'{name}' not in: {member.describe()}"
        assert any(cause in message for cause in causes), f"none of {causes} in: {member.describe()}"


KILLED = ("ended without leaving", "ended before all had joined", "lost the connection", "lost its connection")
VICTIMS = ("rank 1", "rank 0", "server 0", "scheduler")
# What ranks 0 and 1 do, what a victim has written when it is killed, and how often.
MOMENTS = {
    "before the first step": (("init", "pause", "step"), ("init", "pause", "step"), "did init", 1),
    "during a step": (("init", "steps"), ("init", "steps"), "did step", 5),
    "between steps": (("init", "step", "barrier"), ("init", "step", "pause", "barrier"), "did step", 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_ends_the_job(victim: str, moment: str, tmp_path: Path) -> None:
    *plans, text, count = MOMENTS[moment]
    with make_cluster(tmp_path, 2, hosted=victim == "rank 0") as cluster:
        start_all(cluster, plans)
        for rank in (0, 1):
            cluster[f"rank {rank}"].wait_for(text, count)
        cluster[victim].kill()
        since_s = time.monotonic()
        for member in cluster.others(victim):
            member.resume_plan()
        check_that_others_end(cluster, victim, name_of(cluster, victim), since_s, KILLED)


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_process_killed_while_others_still_join(victim: str, tmp_path: Path) -> None:
    with make_cluster(tmp_path, 3, hosted=victim == "rank 0") as cluster:  # rank 2 never comes
        cluster.env["BYTEPS_LOG_LEVEL"] = "info"
        start_all(cluster, [("init",), ("init",)])
        cluster["rank 0" if cluster.hosted else "scheduler"].wait_for("asks to join", 3)
        cluster[victim].kill()
        # Before the start, rank 0 is known by its place only, and servers have no numbers.
        name = {"rank 0": "which is part of rank 0", "server 0": f"server (host {HOST}, pid {cluster[victim].pid})"}
        check_that_others_end(cluster, victim, name.get(victim, name_of(cluster, victim)), time.monotonic(), KILLED)


@pytest.mark.parametrize("moment", ["before the first step", "during a step"])
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_stopped_process_ends_the_job(victim: str, moment: str, tmp_path: Path) -> None:
    *plans, text, count = MOMENTS[moment]
    with make_cluster(tmp_path, 2, hosted=victim == "rank 0") as cluster:
        start_all(cluster, plans)
        for rank in (0, 1):
            cluster[f"rank {rank}"].wait_for(text, count)
        cluster[victim].stop()
        since_s = time.monotonic()
        for member in cluster.others(victim):
            member.resume_plan()
        check_that_others_end(cluster, victim, name_of(cluster, victim), since_s, ["has been silent for"])


@pytest.mark.parametrize("victim", ["rank 1", "server 0"])
def test_a_process_whose_data_thread_hangs(victim: str, tmp_path: Path) -> None:
    """The process does not answer, but its sockets stay open and it sends heartbeats."""
    with make_cluster(tmp_path, 2, hosted=False) as cluster:
        start_all(cluster, [("init", "steps"), ("init", "steps")])
        for rank in (0, 1):
            cluster[f"rank {rank}"].wait_for("did step", 5)
        with hanging(cluster[victim].pid, "bps-data-0"):
            since_s = time.monotonic()
            cause = "its thread bps-data-0, which sends and sums tensors, hangs"
            for member in cluster.others(victim):
                assert member.end(max(0.0, since_s + 2 * TIMEOUT_S - time.monotonic())) != 0, member.describe()
                assert f"{name_of(cluster, victim)}: {cause}" in member.output, member.describe()


def test_a_process_that_runs_out_of_memory(tmp_path: Path) -> None:
    with make_cluster(tmp_path, 2, hosted=False) as cluster:
        cluster.env["BYTEPS_PARTITION_BYTES"] = str(8 << 20)  # of which the server needs several at once
        start_all(cluster, [("init", "step", "pause", "flood"), ("init", "step", "pause", "flood")])
        ranks = [cluster["rank 0"], cluster["rank 1"]]
        for rank in ranks:
            rank.wait_for("did step")
        server = cluster["server 0"]
        limit_bytes = virtual_bytes(server.pid) + (4 << 20)
        resource.prlimit(server.pid, resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        for rank in ranks:
            rank.resume_plan()
        for member in (*ranks, server):
            assert member.end(2 * TIMEOUT_S) == (1 if member is server else RAISED), member.describe()
            assert f"{name_of(cluster, 'server 0')}: its thread bps-data-" in member.output, member.describe()
            assert " is out of memory: no memory for " in member.output, member.describe()


@pytest.mark.parametrize("victim", ["scheduler", "rank 0"])
def test_a_scheduler_that_runs_out_of_memory(victim: str, tmp_path: Path) -> None:
    """The thread that does is the one by which its process would tell the others."""
    with make_cluster(tmp_path, 2, hosted=victim == "rank 0") as cluster:
        cluster.env["MALLOC_ARENA_MAX"] = "1"  # else the thread has set address space aside
        start_all(cluster, [("init", "step", "pause", "step"), ("init", "step", "pause", "name_many")])
        for rank in (0, 1):
            cluster[f"rank {rank}"].wait_for("did step")
        scheduler = cluster[victim]
        unlimited = resource.prlimit(scheduler.pid, resource.RLIMIT_AS)
        limit_bytes = virtual_bytes(scheduler.pid) + (1 << 20)
        resource.prlimit(scheduler.pid, resource.RLIMIT_AS, (limit_bytes, unlimited[1]))
        since_s = time.monotonic()
        cluster["rank 1"].resume_plan()
        cause = "its thread bps-control is out of memory: "
        scheduler.wait_for(cause)
        if victim == "rank 0":  # its program has a step to begin, for which it needs memory
            resource.prlimit(scheduler.pid, resource.RLIMIT_AS, unlimited)
        cluster["rank 0"].resume_plan()
        name = "scheduler" if victim == "scheduler" else name_of(cluster, victim)
        check_that_others_end(cluster, victim, name, since_s, ["lost the connection"])
        if victim == "scheduler":
            assert scheduler.end(TIMEOUT_S) == 1, scheduler.describe()
            assert f"the scheduler: {cause}" in scheduler.output, scheduler.describe()
        else:
            assert scheduler.end(TIMEOUT_S) == RAISED, scheduler.describe()
            assert f"{name}: {cause}" in scheduler.raised().message, scheduler.describe()


def test_threads_are_prepared_to_throw_without_memory() -> None:
    """The compiler once left the preparation out, and only one of twelve runs of the tests above failed."""
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", _core.__file__], check=True, capture_output=True, text=True
    ).stdout
    assert "uncaught_exceptions" in symbols


def test_a_rank_that_never_starts(tmp_path: Path) -> None:
    with make_cluster(tmp_path, 2, hosted=False, start_timeout_s=START_TIMEOUT_S) as cluster:
        since_s = time.monotonic()
        start_all(cluster, [("init",)])
        for member in cluster.members.values():
            assert member.end(2 * START_TIMEOUT_S - (time.monotonic() - since_s)) != 0
            assert "rank 1 missing; joined: " in member.output, member.describe()
            assert f"rank 0 (host {HOST}, pid" in member.output, member.describe()
        assert cluster["rank 0"].raised().kind == "TimeoutError"


def test_a_server_that_never_starts(tmp_path: Path) -> None:
    with make_cluster(tmp_path, 1, hosted=True, start_timeout_s=START_TIMEOUT_S) as cluster:
        rank = cluster.start_rank(0, "init")
        assert rank.end(2 * START_TIMEOUT_S) == RAISED
        assert "1 server missing" in rank.raised().message, rank.describe()


def test_a_scheduler_that_never_starts(tmp_path: Path) -> None:
    with make_cluster(tmp_path, 2, hosted=False, start_timeout_s=START_TIMEOUT_S) as cluster:
        for member in (cluster.start_rank(0, "init"), cluster.start_server()):
            assert member.end(2 * START_TIMEOUT_S) != 0
            assert f"127.0.0.1:{cluster.port}" in member.output, member.describe()
            assert "check the address, firewalls" in member.output, member.describe()


@pytest.mark.parametrize("waiting", ["step", "barrier"])
def test_a_rank_that_leaves_while_others_wait(waiting: str, tmp_path: Path) -> None:
    with make_cluster(tmp_path, 2, hosted=False) as cluster:
        start_all(cluster, [("init", "step", waiting), ("init", "step", "pause", "shutdown")])
        for rank in (0, 1):
            cluster[f"rank {rank}"].wait_for("did step")
        cluster["rank 1"].resume_plan()
        since_s = time.monotonic()
        assert cluster["rank 0"].end(2 * TIMEOUT_S) == RAISED
        raised = cluster["rank 0"].raised()
        assert raised.at_s - since_s < TIMEOUT_S
        assert f"rank 1 (host {HOST}, pid" in raised.message and "has left the job" in raised.message
        # Both ranks have told what they wanted to tell: for the rest of the job that is an orderly
        # end.
        for name in ("rank 1", "server 0", "scheduler"):
            assert cluster[name].end() == 0, cluster[name].describe()


def test_a_rank_that_ends_by_an_exception_fails_the_job_with_that(tmp_path: Path) -> None:
    with make_cluster(tmp_path, 2, hosted=False) as cluster:
        start_all(cluster, [("init", "step", "step"), ("init", "step", "pause", "misspelt")])
        cluster["rank 1"].wait_for("did step")
        cluster["rank 1"].resume_plan()
        cause = f"rank 1 (host {HOST}, pid {cluster['rank 1'].pid}) ended by KeyError: 'misspelt'"
        cluster["rank 0"].check_raised("PeerLostError", cause)
        assert cluster["rank 1"].end() == 1
        for name in ("server 0", "scheduler"):
            assert cluster[name].end() == 1, "its exit code tells that a worker failed"
            assert cause in cluster[name].output


@pytest.mark.parametrize("machines", [1, 2])
def test_a_rank_that_does_not_take_part(machines: int, tmp_path: Path) -> None:
    """The rank is alive and busy: the push_pull fails by its own, longer timeout."""
    with make_cluster(tmp_path, 2, hosted=False) as cluster:
        cluster.env |= {"BYTEPS_STALL_WARNING_S": "1", "BYTEPS_OP_TIMEOUT_S": "2"}
        cluster.start_scheduler()
        cluster.start_server()
        for rank, last in enumerate(("step", "barrier")):
            cluster.start_rank(rank, "init", "step", "pause", last, env={"BYTEPS_MACHINE": f"m{rank % machines}"})
        cluster["rank 1"].wait_for("did step")
        cluster["rank 0"].wait_for("did step")
        since_s = time.monotonic()
        cluster["rank 0"].resume_plan()
        assert cluster["rank 0"].end() == RAISED
        raised = cluster["rank 0"].raised()
        assert raised.kind == "TimeoutError" and 1.9 < raised.at_s - since_s < 4, raised
        missing = f"for rank 1 (host {HOST}, pid {cluster['rank 1'].pid})"
        assert missing in raised.message
        # Warnings are of the services that wait, which know tensors by their numbers only.
        output = cluster["server 0"].output if machines == 2 else cluster["rank 0"].output + cluster["rank 1"].output
        warnings = [line for line in output.splitlines() if "tensor 'layer0': round 2 of partition " in line]
        assert warnings and all(
            re.search(rf"has waited 1(\.\d+)? s {re.escape(missing)}", line) for line in warnings
        ), cluster.describe()


def test_ranks_that_wait_for_different_things_hear_of_both(tmp_path: Path) -> None:
    with make_cluster(tmp_path, 2, hosted=False) as cluster:
        cluster.env["BYTEPS_OP_TIMEOUT_S"] = "8"  # whom a rank waits for it says after 5 s
        start_all(cluster, [("init", "step"), ("init", "barrier")])
        for rank in (0, 1):
            cluster[f"rank {rank}"].wait_for("waits: ")
        pids = [cluster[f"rank {rank}"].pid for rank in (0, 1)]
        tensor = "push_pull of 'layer0'"
        assert f"waits: {tensor}: rank 1 (host {HOST}, pid {pids[1]}) waits for a barrier" in cluster["rank 0"].output
        assert f"waits: a barrier: rank 0 (host {HOST}, pid {pids[0]}) waits for {tensor}" in cluster["rank 1"].output
        both = [cluster[f"rank {rank}"] for rank in (0, 1)]
        assert [rank.end() for rank in both] == [RAISED, RAISED], cluster.describe()
        kinds = {rank.raised().kind: rank.raised().message for rank in both}
        assert "waits for a barrier" in kinds["TimeoutError"] or f"waits for {tensor}" in kinds["TimeoutError"]
