"""Cases in the guest: the transport that a job's connections choose, and its log lines.

All but the first are jobs of two ranks that sum for each other, each with one connection to the
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rdma.pair import DEVICES, PATIENCE_S, PairJob, losing, traffic

PLAN = ("init", "step*2", "shutdown")  # steps whose sums are checked
STEP_BYTES = 4 * (100 + (1 << 16) + (1 << 19))
QUICK = {"BYTEPS_TIMEOUT_S": "5"}  # a rank whose connection fails waits so long for a better reason
OTHER_KIND = {"rank 1": {"BYTEPS_RDMA_GID_INDEX": "0"}}  # GID of its IPv6 address
INSTEAD = "TCP instead"


def peers(
    folder: Path,
    transport: str,
    env: Mapping[str, Mapping[str, str]] | None = None,
    before: Mapping[str, Sequence[str]] | None = None,
) -> PairJob:
    """Started."""
    job = PairJob(folder, transport=transport, servers=0, env=QUICK | {"BYTEPS_PLACEMENT": "allreduce"})
    try:
        job.start_all(*PLAN, env=env, before=before)
    except BaseException:
        job.__exit__()
        raise
    return job


def locked_memory(kib: int) -> tuple[str, ...]:
    """A command before a member's: root needs no more than anybody may lock."""
    return ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", f"--memlock={kib << 10}")


def check_both_say(job: PairJob, level: str, *parts: str) -> None:
    """Each rank has one line about the other, of this level; with all parts somewhere."""
    for rank in (0, 1):
        said = [
            line for line in job.lines(f"no RDMA with rank {1 - rank} (") if line.startswith(f"rank {rank}: {level} ")
        ]
        assert len(said) == 1, job.describe()
        assert INSTEAD in said[0], said
    for part in parts:
        assert part in job.describe(), job.describe()


def check_both_raise(job: PairJob, *parts: str) -> None:
    """An exception that names one of the connection's ends to the other."""
    for member in job.ranks():
        member.check_raised("PeerLostError", "rank 0 (host", "rank 1 (host", *parts, deadline_s=PATIENCE_S)


def case_rdma_is_used_by_itself(folder: Path) -> None:
    before = traffic()
    with PairJob(folder, transport="auto") as job:
        job.start_all(*PLAN)
        job.end_all()
        for number, member in enumerate(job.members.values()):
            assert f"rdma: {DEVICES[number % 2]} port 1: ::ffff:10.77.0." in member.output, job.describe()
        assert not job.lines(INSTEAD), job.describe()
    sent = traffic() - before
    assert sent.rdma_packets * 4096 >= 2 * 2 * 2 * STEP_BYTES, sent  # both ways, on both ranks


def case_a_rank_without_rdma(folder: Path) -> None:
    before = traffic()
    with peers(folder, "auto", {"rank 1": {"BYTEPS_TRANSPORT": "tcp"}}) as job:
        job.end_all()
        (told,) = job.lines("no RDMA with rank 1 (")
        assert told.startswith("rank 0: W ") and INSTEAD in told and "offers none" in told, job.describe()
        (why,) = job.lines("no RDMA with rank 0 (")
        assert why.startswith("rank 1: I ") and "BYTEPS_TRANSPORT is tcp" in why, job.describe()
    assert (traffic() - before).rdma_packets == 0


def case_packets_that_do_not_arrive(folder: Path) -> None:
    with losing(), peers(folder, "auto") as job:
        job.end_all()
        check_both_say(job, "W", "no answer by RDMA", "UDP port 4791 not filtered")


def case_packets_that_do_not_arrive_where_rdma_is_demanded(folder: Path) -> None:
    with losing(), peers(folder, "rdma") as job:
        check_both_raise(job, "no answer by RDMA", "check", "UDP port 4791 not filtered")


def case_gids_of_two_kinds(folder: Path) -> None:
    with peers(folder, "auto", OTHER_KIND) as job:
        job.end_all()
        check_both_say(job, "W", "BYTEPS_RDMA_GID_INDEX")


def case_gids_of_two_kinds_where_rdma_is_demanded(folder: Path) -> None:
    with peers(folder, "rdma", OTHER_KIND) as job:
        check_both_raise(job, "BYTEPS_RDMA_GID_INDEX")


def case_no_memory_may_be_locked(folder: Path) -> None:
    with peers(folder, "auto", before={"rank 1": locked_memory(64)}) as job:
        job.end_all()
        check_both_say(job, "W", "the limit of locked memory is 64 KiB", "ulimit -l unlimited")


def case_no_memory_may_be_locked_where_rdma_is_demanded(folder: Path) -> None:
    with peers(folder, "rdma", before={"rank 1": locked_memory(64)}) as job:
        check_both_raise(job, "the limit of locked memory is 64 KiB", "ulimit -l unlimited")


def case_not_all_memory_may_be_locked(folder: Path) -> None:
    """Memory is enough for connections but not for all tensors: the others are copied."""
    before = traffic()
    with peers(folder, "auto", before={"rank 1": locked_memory(3072)}) as job:
        job.end_all()
        assert not job.lines(INSTEAD), job.describe()
        for what in ("payloads are copied", "what it sends is copied"):
            said = [line for line in job.lines(what) if "the limit of locked memory is 3072 KiB" in line]
            assert 1 <= len(said) <= 2, job.describe()  # once for each of two connections
        assert not [line for line in job.lines("copied") if not line.startswith("rank 1: W ")], job.describe()
    sent = traffic() - before
    assert sent.rdma_packets * 4096 >= 2 * 2 * STEP_BYTES, sent
