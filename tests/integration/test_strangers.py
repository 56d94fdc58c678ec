"""Peers that are not of the job: nothing they do harms it."""

from __future__ import annotations

import random
import secrets
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support import intruder
from support.cluster import RAISED, Cluster, wait_until
from support.processes import listening_ports, resident_bytes

FRAMES = 100_000
FRAMES_PER_CONNECTION = 5  # a frame that ends a connection hides later ones
GROWTH_BYTES = 20 << 20  # a leak of a few hundred bytes a frame would be more


@contextmanager
def training(folder: Path) -> Iterator[Cluster]:
    """A job of two ranks and a server that trains in the context and then ends without errors."""
    with Cluster(folder, workers=2, servers=1, env={"BYTEPS_TIMEOUT_S": "20"}) as cluster:
        cluster.start_scheduler()
        cluster.start_server()
        for rank in range(2):
            cluster.start_rank(rank, "init", "pause", "steps_until_told", "step", "barrier")
        for rank in range(2):
            cluster[f"rank {rank}"].wait_for("did init")
        yield cluster
        cluster["rank 0"].resume_plan()
        for member in cluster.members.values():
            assert member.end() == 0, cluster.describe()


def begin_steps(cluster: Cluster) -> None:
    for rank in range(2):
        cluster[f"rank {rank}"].resume_plan()
    cluster["rank 0"].wait_for("first small step")


def http(connection: socket.socket) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser\r\nAccept: */*\r\n\r\n")


def noise(connection: socket.socket) -> None:
    connection.sendall(random.Random(1).randbytes(100_000))


def half_a_greeting(connection: socket.socket) -> None:
    connection.sendall(b"BPS\x01" + bytes(10))
    connection.shutdown(socket.SHUT_WR)


def nothing_and_gone(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


CALLERS: tuple[Callable[[socket.socket], None], ...] = (http, noise, half_a_greeting, nothing_and_gone)


def check_hangs_up_without_a_word(port: int, call: Callable[[socket.socket], None]) -> None:
    with intruder.connect(port) as connection:
        try:
            call(connection)
            assert connection.recv(100) == b""
        except (ConnectionResetError, BrokenPipeError):
            pass  # the peer closed before it had read everything


def test_port_scanners_and_http_clients_at_every_port(tmp_path: Path) -> None:
    with training(tmp_path) as cluster, ExitStack() as held:
        ports = [port for member in cluster.members.values() for port in listening_ports(member.pid)]
        assert cluster.port in ports and len(ports) >= 4, ports
        for port in ports:  # more than a listener holds, before the ranks connect
            for _ in range(80):
                held.enter_context(intruder.connect(port))
        begin_steps(cluster)
        for port in ports:
            for call in CALLERS:
                check_hangs_up_without_a_word(port, call)


def test_a_proof_of_another_secret_or_job_is_refused(tmp_path: Path) -> None:
    with training(tmp_path) as cluster:
        begin_steps(cluster)
        secret, job_id = cluster.env["BYTEPS_SECRET"], cluster.env["BYTEPS_JOB_ID"]
        intruder.connect_with_secret(cluster.port, secret, job_id).close()
        with pytest.raises(ConnectionError, match="another job"):
            intruder.connect_with_secret(cluster.port, secret, "another job")
        for wrong in ("0" * 32, ""):
            with pytest.raises(ConnectionError, match="another secret"):
                intruder.connect_with_secret(cluster.port, wrong, job_id)


def attack(cluster: Cluster, ports: list[int], frames: int, mutator: intruder.Mutator, opening: bytes = b"") -> None:
    """Sends mutated frames, many on each connection: those after the fatal one are ignored.

    Nine of ten connections open a session first, and those to services send `opening`.
    """
    secret, job_id = cluster.env["BYTEPS_SECRET"], cluster.env["BYTEPS_JOB_ID"]
    for number in range(frames // FRAMES_PER_CONNECTION):
        port = ports[number % len(ports)]
        with intruder.connect_with_secret(port, secret, job_id) as connection:
            burst = b"".join(mutator.next() for _ in range(FRAMES_PER_CONNECTION))
            if number % 10 > 0:
                burst = intruder.open_session(number) + (b"" if port == cluster.port else opening) + burst
            try:
                connection.sendall(burst)
            except (ConnectionResetError, BrokenPipeError):
                continue


def test_mutated_frames_of_somebody_who_knows_the_secret(tmp_path: Path) -> None:
    with training(tmp_path) as cluster:
        begin_steps(cluster)
        victims = [cluster["scheduler"].pid, cluster["server 0"].pid]
        ports = [port for pid in victims for port in listening_ports(pid)]
        mutator = intruder.Mutator(random.Random(2), intruder.every_message(epoch=1, rank=1))
        attack(cluster, ports, FRAMES // 10, mutator)  # warm-up: some memory grows once
        before = [resident_bytes(pid) for pid in victims]
        attack(cluster, ports, FRAMES, mutator)
        grown = [resident_bytes(pid) - old for pid, old in zip(victims, before, strict=True)]
        assert max(grown) < GROWTH_BYTES, grown


# While the job runs, or while it measures network cards.
@pytest.mark.parametrize("nic_probe", ["0", "1"])
def test_mutated_frames_of_a_member(nic_probe: str, tmp_path: Path) -> None:
    """A member of the job can end it, but crashes nobody, and the others name it."""
    env = {"BYTEPS_TIMEOUT_S": "60", "BYTEPS_NIC_PROBE": nic_probe}
    with Cluster(tmp_path, workers=2, servers=1, env=env) as cluster:
        scheduler, server = cluster.start_scheduler(), cluster.start_server()
        rank = cluster.start_rank(0, "init", "barrier")
        secret, job_id = cluster.env["BYTEPS_SECRET"], cluster.env["BYTEPS_JOB_ID"]
        wait_until(lambda: all(listening_ports(member.pid) for member in (scheduler, server)))
        with intruder.connect_with_secret(cluster.port, secret, job_id) as membership:
            membership.sendall(intruder.open_session(0) + intruder.join(rank=1, workers=2, servers=1))
            epoch = intruder.receive_epoch(membership)
            messages = intruder.every_message(epoch, rank=1)
            mutator = intruder.Mutator(random.Random(3), messages)
            hello = messages[0]
            attack(cluster, listening_ports(server.pid), FRAMES // 5, mutator, hello)
            before = resident_bytes(server.pid)
            attack(cluster, listening_ports(server.pid), FRAMES // 5, mutator, hello)
            assert resident_bytes(server.pid) - before < GROWTH_BYTES
            assert [member.process.poll() for member in cluster.members.values()] == [None] * 3, cluster.describe()
        assert [member.end() for member in (rank, scheduler, server)] == [RAISED, 1, 1], cluster.describe()
        assert "rank 1 (host intruder, pid" in rank.raised().message


def test_a_stranger_can_neither_join_nor_say_who_is_lost(tmp_path: Path) -> None:
    with training(tmp_path) as cluster:
        begin_steps(cluster)
        secret, job_id = cluster.env["BYTEPS_SECRET"], cluster.env["BYTEPS_JOB_ID"]
        for message in (
            intruder.join(rank=1, workers=2, servers=1),
            intruder.control(intruder.LEAVE, intruder.text("")),
            intruder.control(intruder.SUSPECT, struct.pack("<I", 0) + intruder.text("I say so")),
        ):
            with intruder.connect_with_secret(cluster.port, secret, job_id) as connection:
                connection.sendall(intruder.open_session(0) + message)
                answer = intruder.receive_all(connection)
                assert (b"the job has started already" in answer) == (message[25] == intruder.JOIN), answer


def test_a_rank_with_another_secret_ends_both_sides(tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=2, env={"BYTEPS_START_TIMEOUT_S": "600"}) as cluster:
        scheduler, good = cluster.start_scheduler(), cluster.start_rank(0, "init")
        bad = cluster.start_rank(1, "init", env={"BYTEPS_SECRET": secrets.token_hex(16)})
        bad.check_raised("AuthenticationError", f"127.0.0.1:{cluster.port}", "it has another secret: check that")
        good.check_raised("AuthenticationError", "rank 1 missing", "127.0.0.1 was refused: it has another secret")
        assert scheduler.end() == 1
        assert "did not prove the job's secret: it has another secret" in scheduler.output, scheduler.describe()


def test_a_rank_of_another_job_ends_and_is_nothing_to_this_one(tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=2) as cluster:
        ours = [cluster.start_scheduler(), cluster.start_rank(0, "init", "step", "barrier")]
        bad = cluster.start_rank(1, "init", env={"BYTEPS_JOB_ID": secrets.token_hex(8)})
        bad.check_raised(
            "AuthenticationError", f"127.0.0.1:{cluster.port}", "it knows the secret, but has another job id"
        )
        ours.append(cluster.start_rank(1, "init", "step", "barrier"))
        assert [member.end() for member in ours] == [0] * 3, cluster.describe()


def test_four_hundred_strangers_keep_no_job_from_starting(tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=2, servers=1) as cluster:
        scheduler = cluster.start_scheduler()
        wait_until(lambda: listening_ports(scheduler.pid))
        with intruder.Crowd([cluster.port], 400):
            cluster.start_server()
            for rank in range(2):
                cluster.start_rank(rank, "init", "pause", "step", "barrier")
            for rank in range(2):
                cluster[f"rank {rank}"].wait_for("did init")
        ports = [port for member in cluster.others("scheduler") for port in listening_ports(member.pid)]
        assert len(ports) >= 3, ports
        with intruder.Crowd(ports, 400):  # the ranks have not connected to each other yet
            for rank in range(2):
                cluster[f"rank {rank}"].resume_plan()
            assert [member.end() for member in cluster.members.values()] == [0] * 4, cluster.describe()


def test_without_a_secret_only_the_loopback_will_do(tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=2) as cluster:
        del cluster.env["BYTEPS_SECRET"]
        member = cluster.start_rank(0, "init", env={"DMLC_NODE_HOST": "192.0.2.7"})
        assert member.end() == RAISED
        assert "192.0.2.7" in member.raised().message and "secret" in member.raised().message
