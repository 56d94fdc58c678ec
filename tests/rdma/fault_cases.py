"""Cases in the guest: faults while a job sums by RDMA."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from rdma.pair import PATIENCE_S, PairJob, ip, losing
from support.cluster import wait_until
from support.resets import reset_one, why_no_resets

ENDS = {"BYTEPS_FAILOVER": "0"}  # the job ends when a server is lost
# Of a rank whose connection has failed: it waits so long for a better reason.
QUICK = ENDS | {"BYTEPS_TIMEOUT_S": "10"}
# 0.27 s, six times: it gives up after some seconds. And packets of a busy guest are sent again for
# nothing, which does no harm.
IMPATIENT = QUICK | {"BYTEPS_RDMA_TIMEOUT": "16"}
BEYOND_THE_WIRE = ("rank 1", "server 1")  # members that use rxe1


RENEWED = "the queue pair is replaced"
PATIENT = {"BYTEPS_RDMA_TIMEOUT": "16", "BYTEPS_TIMEOUT_S": "60"} | ENDS


def start(job: PairJob) -> None:
    """Starts all members, until they run steps."""
    job.start_all("init", "steps")
    check_goes_on(job)


def steps_of(job: PairJob) -> list[int]:
    return [member.output.count("did step") for member in job.ranks()]


def check_goes_on(job: PairJob) -> None:
    """Every rank does two more steps at least, of which the second is begun after now.

    Ranks check the sums.
    """
    for member, done in zip(job.ranks(), steps_of(job), strict=True):
        member.wait_for("did step", done + 2)


def check_all_raise(job: PairJob, lost: Sequence[str], *parts: str, but: str = "") -> None:
    """Checks that every rank raises PeerLostError with all parts, and that servers end."""
    # Not numbers: those of servers depend on the order of joining.
    pids = [f"pid {job[name].pid})" for name in lost]
    for member in job.members.values():
        if member.name == but:
            continue
        if member.name.startswith("rank"):
            member.check_raised("PeerLostError", *parts, deadline_s=PATIENCE_S)
            assert any(pid in member.raised().message for pid in pids), member.describe()
        else:
            assert member.end(PATIENCE_S) == 1, job.describe()


def check_kill(folder: Path, victim: str) -> None:
    with PairJob(folder, env=ENDS) as job:
        start(job)
        job[victim].kill()
        killed_s = time.monotonic()
        check_all_raise(job, [victim], but=victim)
        waited_s = [member.raised().at_s - killed_s for member in job.ranks() if member.name != victim]
        limit_s = float(job.env["BYTEPS_TIMEOUT_S"])
        assert max(waited_s) < limit_s, f"not told, but found out by silence: {waited_s}"


def case_a_killed_rank(folder: Path) -> None:
    check_kill(folder, "rank 1")


def case_a_killed_server(folder: Path) -> None:
    check_kill(folder, "server 1")


def case_a_job_goes_on_without_its_servers(folder: Path) -> None:
    with PairJob(folder) as job:
        start(job)
        for lost, server in enumerate(("server 1", "server 0"), start=1):
            job[server].kill()
            job["rank 0"].wait_for("training goes on without this server", lost)
            check_goes_on(job)
        assert not job.lines("raised"), job.describe()


def case_packets_lost_for_seconds(folder: Path) -> None:
    with PairJob(folder, env={"BYTEPS_RDMA_TIMEOUT": "18"}) as job:
        start(job)
        with losing():
            before = steps_of(job)
            time.sleep(3)
            # What has come in time ends a step, and one may have ended that was not told of.
            assert all(now <= then + 2 for now, then in zip(steps_of(job), before, strict=True)), job.describe()
        check_goes_on(job)
        assert not job.lines("raised"), job.describe()


def wait_for_failure(job: PairJob, before: int = 0) -> None:
    wait_until(lambda: len(job.lines(RENEWED)) > before, job.describe, PATIENCE_S)


def check_nothing_is_lost(job: PairJob) -> None:
    check_goes_on(job)
    assert not job.lines("raised"), job.describe()
    again = [line for line in job.lines("nothing is lost") if " rdma " in line]
    assert again, job.describe()
    print(*again, sep="\n")


def case_packets_lost_for_longer_than_cards_send_again(folder: Path) -> None:
    with PairJob(folder, env=PATIENT) as job:
        start(job)
        for _ in range(2):
            before = len(job.lines(RENEWED))
            with losing():
                wait_for_failure(job, before)
                time.sleep(3)
            check_nothing_is_lost(job)


def case_packets_lost_for_ever(folder: Path) -> None:
    with PairJob(folder, env=IMPATIENT) as job:
        start(job)
        with losing():
            check_all_raise(job, BEYOND_THE_WIRE, "lost its connection to")
            print(*job.lines("retry counter"), sep="\n")


def case_the_link_goes_down_and_up(folder: Path) -> None:
    """The device is down for longer than the retry time: Soft-RoCE gives up, the job goes on."""
    with PairJob(folder, env=PATIENT) as job:
        start(job)
        ip("link", "set", "veth1", "down")
        try:
            wait_for_failure(job)
            time.sleep(3)
        finally:
            link_up()
        check_nothing_is_lost(job)


def link_up() -> None:
    ip("link", "set", "veth1", "up")
    ip("route", "replace", "10.77.0.2", "dev", "veth0", "src", "10.77.0.1", "table", "100")
    ip("route", "replace", "10.77.0.1", "dev", "veth1", "src", "10.77.0.2", "table", "101")


def case_the_link_stays_down(folder: Path) -> None:
    with PairJob(folder, env=IMPATIENT) as job:
        start(job)
        ip("link", "set", "veth1", "down")
        try:
            check_all_raise(job, BEYOND_THE_WIRE, "lost its connection to")
            assert len(job.lines("rxe1 port 1 is down")) == 2, job.describe()  # of both users
        finally:
            link_up()


def case_tcp_connections_are_reset(folder: Path) -> None:
    """Those with which RDMA connections begin, and those to the scheduler."""
    assert why_no_resets() is None, why_no_resets()
    with PairJob(folder) as job:
        start(job)
        count = 0
        for _ in range(12):
            count += reset_one([member.pid for member in job.members.values()], 7 * count)
            time.sleep(0.5)
        check_goes_on(job)
        assert not job.lines("raised"), job.describe()
        again = job.lines("connected again after")
        assert count > 6 and any(f":{job.port}: " not in line for line in again), job.describe()


def case_the_device_is_removed(folder: Path) -> None:
    """Removes the device: Soft-RoCE waits until it is not used, so the job goes on to its end."""
    with PairJob(folder) as job:
        start(job)
        removal = subprocess.Popen(["rdma", "link", "delete", "rxe1"])
        try:
            check_goes_on(job)
            check_goes_on(job)
            assert removal.poll() is None
            for member in job.members.values():
                member.kill()
            assert removal.wait(PATIENCE_S) == 0
            assert not Path("/sys/class/infiniband/rxe1").exists()
        finally:
            removal.kill()
            removal.wait()
    subprocess.run(["rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "veth1"], check=True, timeout=PATIENCE_S)
