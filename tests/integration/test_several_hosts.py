"""Whole jobs on several hosts of the network lab, with one rank and with several on each."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cluster import RAISED, Cluster, Member
from support.hosts import Hosts
from support.job import ROOT
from support.lost_training import PROGRAM, end_of
from support.resets import RESET_ALL, why_no_resets

from benchmarks.lab import Impairments, Lab, why_impossible
from benchmarks.lab.lab import INTERFACE

IMPOSSIBLE = why_impossible()
pytestmark = pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"no lab on this machine: {IMPOSSIBLE}")

TRAINING = ROOT / "tests/support/training_steps.py"
STEPS = 2
STEP_BYTES = 4 * (1500 * 400 + 300 * 301 + 17)  # size of the tensors of a step of TRAINING
DEATH_S = 15.0  # a death has to be known by then: not by silence
SILENCE_S = 4.0  # the timeout of tests in which a host is cut off


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab([1000] * 4) as lab:
        yield lab


def results(folder: Path, ranks: int) -> list[Mapping[str, Any]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def digests_in(folder: Path, ranks: int) -> set[str]:
    return {rank["digest"] for rank in results(folder, ranks)}


# Servers, placement, partition size.
TREES = [(0, "auto", 256), (1, "auto", 64), (2, "ps", 1000), (2, "weights:1,0.5,2,1", 16), (1, "allreduce", 4)]


def test_two_levels_give_the_same_bits_wherever_roots_are(lab: Lab, tmp_path: Path) -> None:
    digests = {}
    for servers, placement, partition_kib in TREES:
        case = f"{servers} servers, {placement}, {partition_kib} KiB"
        folder = tmp_path / case
        folder.mkdir()
        env = {"BYTEPS_PLACEMENT": placement, "BYTEPS_PARTITION_BYTES": str(partition_kib << 10)}
        with Hosts(folder, lab, 2, 2, servers, env) as hosts:
            hosts.start_all(str(folder), str(STEPS), program=TRAINING)
            hosts.end_all()
        digests[case] = digests_in(folder, 4)
    assert digests == dict.fromkeys(digests, digests_on_loopback(tmp_path, 4, ranks_each=2))


def digests_on_loopback(folder: Path, ranks: int, ranks_each: int) -> set[str]:
    """What the same ranks compute, with as many on each machine, but all over the loopback of one host."""
    with Cluster(folder, ranks, hosted=True, env={"BYTEPS_SHM": "0"}) as cluster:
        for rank in range(ranks):
            machine = {"BYTEPS_MACHINE": f"machine{rank // ranks_each}"}
            cluster.start_rank(rank, str(folder), str(STEPS), program=TRAINING, env=machine)
        for member in cluster.members.values():
            assert member.end() == 0, cluster.describe()
    digests = digests_in(folder, ranks)
    assert len(digests) == 1
    return digests


def test_eight_connections_on_a_long_lossy_path_give_the_same_bits_as_one(tmp_path: Path) -> None:
    """They are more than twice as fast there, but a busy machine may measure less: the test tries again."""
    logs: list[str] = []
    env = {"BYTEPS_NIC_MBPS": "0", "BYTEPS_LOG_LEVEL": "info"}
    with Lab([200] * 2, impairments=Impairments(loss_percent=3, delay_ms=50)) as lab:
        while not any(" with 8 connections: host" in log for log in logs):
            assert len(logs) < 3, logs
            folder = tmp_path / str(len(logs))
            folder.mkdir()
            with Hosts(folder, lab, 2, env=env) as hosts:
                hosts.start_all(str(folder), str(STEPS), program=TRAINING)
                hosts.end_all()
                logs.append(hosts["rank 0"].output)
    assert digests_in(folder, 2) == digests_on_loopback(tmp_path, 2, ranks_each=1)


def test_ranks_of_a_host_send_their_sum_once(lab: Lab, tmp_path: Path) -> None:
    """Every byte crosses each host's link once in each direction, for any number of ranks."""
    with Hosts(tmp_path, lab, 2, 2, env={"BYTEPS_PARTITION_BYTES": str(32 << 10)}) as hosts:
        hosts.start_all(str(tmp_path), str(STEPS), program=TRAINING)
        hosts.end_all()
    ranks = results(tmp_path, 4)
    for host in (0, 1):
        sent = sum(rank["metrics"]["bytes_sent"] for rank in ranks[2 * host : 2 * host + 2])
        assert sent == pytest.approx(STEPS * STEP_BYTES, rel=0.05)
        # Half of the sums of machines end on either host, and each rank serves its share of both
        # levels.
        assert all(rank["metrics"]["sums"] > 0 for rank in ranks)


def water_filling(machines_mbps: Sequence[float], servers_mbps: Sequence[float]) -> list[float]:
    """The share of each machine's rank in all that is summed, one rank on each machine.

    In the shortest time T, found by bisection, worker i moves 1 + (n - 2) x_i and server j moves n
    x_j. Workers that cannot move 1 within T sum nothing, and hold up the others.
    """
    n = len(machines_mbps)

    def servers(t: float) -> float:
        return sum(t * mbps / n for mbps in servers_mbps)

    def workers(t: float) -> list[float]:
        return [max(0.0, (t * mbps - 1) / (n - 2)) for mbps in machines_mbps]

    low, high = 0.0, float(n)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if servers(middle) + sum(workers(middle)) < 1 else (low, middle)
    return [(1 - servers(high)) * share / sum(workers(high)) for share in workers(high)]


@pytest.mark.parametrize("rates", [(400, 300, 400, 200), (400, 200, 200, 100), (100, 400, 300, 50)])
def test_unequal_links_get_shares_by_water_filling(rates: tuple[int, ...], tmp_path: Path) -> None:
    """LabJob tells each process its link's rate in BYTEPS_NIC_MBPS. Three workers and a server."""
    partition_bytes = 16 << 10
    with Lab(rates) as lab, Hosts(tmp_path, lab, 3, 1, 1, {"BYTEPS_PARTITION_BYTES": str(partition_bytes)}) as hosts:
        hosts.start_all(str(tmp_path), str(STEPS), program=TRAINING)
        hosts.end_all()
    # A rank sends what others sum, and what it sums to two others.
    summed = [rank["metrics"]["bytes_sent"] / STEPS - STEP_BYTES for rank in results(tmp_path, 3)]
    expected = [share * STEP_BYTES for share in water_filling(rates[:3], rates[3:])]
    assert summed == pytest.approx(expected, abs=3 * partition_bytes)


def check_raised(member: Member, names: Sequence[str], since_s: float) -> None:
    member.wait_for("raised ")
    raised = member.raised()
    assert any(name in raised.message for name in names), f"none of {names} in: {member.describe()}"
    assert raised.at_s - since_s < DEATH_S, member.describe()
    assert member.end() == RAISED, member.describe()


def names_of(members: Sequence[Member], host: int) -> list[str]:
    return [f"{member.name} (host host{host}, pid {member.pid})" for member in members]


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_whose_processes_are_killed(host: int, lab: Lab, tmp_path: Path) -> None:
    with Hosts(tmp_path, lab, 2, 2, 1, {"BYTEPS_TIMEOUT_S": "60"}) as hosts:
        hosts.start_all("init", "flood")
        lost = hosts.ranks_on(host)
        for member in lost:
            member.wait_for("did flood", 2)
        since_s = time.monotonic()
        for member in lost:
            member.kill()
        for member in hosts.ranks_on(1 - host):
            check_raised(member, names_of(lost, host), since_s)
        assert hosts["server 0"].end() == 1, hosts["server 0"].describe()


@contextmanager
def cut_off(lab: Lab, host: int) -> Iterator[None]:
    lab.run(host, ["ip", "link", "set", INTERFACE, "down"])
    try:
        yield
    finally:
        lab.run(host, ["ip", "link", "set", INTERFACE, "up"])


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_that_is_cut_off(host: int, lab: Lab, tmp_path: Path) -> None:
    """The cut-off host loses the scheduler, and the others lose its rank."""
    with Hosts(tmp_path, lab, 2, 2, env={"BYTEPS_TIMEOUT_S": str(SILENCE_S)}) as hosts:
        hosts.start_all("init", "flood")
        for rank in range(hosts.size):
            hosts[f"rank {rank}"].wait_for("did flood", 2)
        since_s = time.monotonic()
        with cut_off(lab, host):
            for member in hosts.ranks_on(0):
                check_raised(member, names_of(hosts.ranks_on(1), 1), since_s)
            for member in hosts.ranks_on(1):
                check_raised(member, names_of(hosts.ranks_on(0), 0), since_s)


@pytest.mark.parametrize("host", [1, 2], ids=["a rank", "the server"])
def test_a_host_that_is_away_for_a_while_after_its_connections_were_reset(host: int, lab: Lab, tmp_path: Path) -> None:
    """As a firewall or a virtual network that is started again: nothing is lost, also at the scheduler."""
    why_not = why_no_resets()
    if why_not is not None:
        pytest.skip(why_not)
    env = {"BYTEPS_TIMEOUT_S": str(3 * SILENCE_S), "BYTEPS_PLACEMENT": "ps"}
    ends = []
    for away in (False, True):
        folder = tmp_path / str(away)
        folder.mkdir()
        with Hosts(folder, lab, 2, 1, 1, env) as hosts:
            hosts.start_all("30", "0.05", program=PROGRAM)
            for rank in (0, 1):
                hosts[f"rank {rank}"].wait_for("step 2")
            if away:
                with cut_off(lab, host):
                    for number in range(3):
                        lab.run(number, RESET_ALL, stdout=subprocess.DEVNULL)
                    time.sleep(1.5 * SILENCE_S)
            ends.append(end_of(hosts, workers=2))
            again = re.findall(r"connected again after (\d+) ms", hosts.describe())
            assert not away or any(int(ms) > 1000 * SILENCE_S for ms in again), hosts.describe()
    assert ends[0] == ends[1]
    assert ends[0][1] == 0, "no server is lost"


def test_a_server_that_is_cut_off(lab: Lab, tmp_path: Path) -> None:
    """Training goes on without it, and it ends."""
    env = {"BYTEPS_TIMEOUT_S": str(SILENCE_S), "BYTEPS_PLACEMENT": "ps"}
    with Hosts(tmp_path, lab, 2, 1, 1, env) as hosts:
        hosts.start_all("init", "flood")
        ranks = [hosts[f"rank {rank}"] for rank in range(hosts.size)]
        for member in ranks:
            member.wait_for("did flood", 2)
        with cut_off(lab, 2):
            for member in ranks:
                member.wait_for("training goes on without this server")
                member.wait_for("did flood", member.output.count("did flood") + 3)
            assert hosts["server 0"].end() == 1, hosts["server 0"].describe()


@contextmanager
def silenced(lab: Lab, sender: int, receiver: int) -> Iterator[None]:
    """Drops all packets from one host to another, without an error."""
    address = lab.hosts[receiver].address
    entry = [address, "dev", INTERFACE]
    lab.run(sender, ["ip", "neigh", "replace", *entry, "lladdr", "02:00:00:00:00:99", "nud", "permanent"])
    try:
        yield
    finally:
        lab.run(sender, ["ip", "neigh", "del", *entry])


@pytest.mark.parametrize(("word", "cut"), [("flood", (1, 2)), ("pause", (2, 1))])
def test_a_link_that_is_cut_one_way_between_two_hosts(
    word: str, cut: tuple[int, int], lab: Lab, tmp_path: Path
) -> None:
    """All hear from the scheduler, and no end is told: the kernels probe idle connections."""
    env = {"BYTEPS_TIMEOUT_S": str(SILENCE_S), "BYTEPS_LOG_LEVEL": "info"}
    with Hosts(tmp_path, lab, 3, env=env) as hosts:
        hosts.start_all("init", "step", word, "barrier")
        for member in hosts.members.values():
            member.wait_for("did flood" if word == "flood" else "did step")
        since_s = time.monotonic()
        with silenced(lab, *cut):
            for member in hosts.members.values():
                member.wait_for("job failed: ")
                member.resume_plan()
                check_raised(member, ["rank 1 (host host1", "rank 2 (host host2"], since_s)


def test_a_rank_that_leaves_while_another_still_receives(tmp_path: Path) -> None:
    """The end takes longer than the timeout, but data arrives all the time."""
    env = {"BYTEPS_TIMEOUT_S": "3", "BYTEPS_PLACEMENT": "weights:1,0"}  # all goes through rank 0
    with Lab([1000, 16]) as lab, Hosts(tmp_path, lab, 2, env=env) as hosts:
        hosts.start_all("init", "receive_much")
        hosts.end_all()
