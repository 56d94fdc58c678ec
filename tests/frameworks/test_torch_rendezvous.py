"""Ranks of a process group join a job through a torch Store; threads are the ranks."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore  # noqa: E402

from byteps import runtime  # noqa: E402
from byteps.errors import InvalidArgumentError, PeerLostError, TimeoutError  # noqa: E402
from byteps.ops import Buffer, ReduceOp, push_pull_buffer, synchronize  # noqa: E402
from byteps.runtime import Job  # noqa: E402
from byteps.torch.c10d import group  # noqa: E402
from byteps.torch.c10d.address import listen, reachable_host  # noqa: E402
from byteps.torch.c10d.group_info import GroupInfo  # noqa: E402
from byteps.torch.c10d.rendezvous import join_group  # noqa: E402


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "BYTEPS_SECRET", "BYTEPS_START_TIMEOUT_S"):
        monkeypatch.delenv(name, raising=False)


def nothing_wrong() -> None:
    """The error that `watch` raises."""


def info_of(store: object, rank: int, size: int, timeout_s: float = 20.0) -> GroupInfo:
    """Returns the info of a group of the global ranks 10, 11, ..."""
    return GroupInfo(store, rank, size, timeout_s, "some", tuple(range(10, 10 + size)))


def join_all(store: object, size: int) -> list[Job]:
    with ThreadPoolExecutor(size) as pool:
        infos = [info_of(store, rank, size) for rank in range(size)]
        return list(pool.map(lambda info: join_group(info, nothing_wrong), infos))


def sums(jobs: list[Job]) -> list[float]:
    def one(job: Job) -> float:
        array = np.full(5, float(job.rank + 1))
        buffer = Buffer(array.ctypes.data, array.nbytes, "float64", array)
        synchronize(push_pull_buffer(buffer, buffer, "x", ReduceOp.Sum, 0, lambda: None, job))
        return float(array[0])

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(one, jobs))


def leave_all(jobs: list[Job]) -> None:
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(runtime.leave, jobs))


def test_ranks_meet_in_a_store_and_may_meet_there_again() -> None:
    store = HashStore()
    for _ in range(2):
        jobs = join_all(PrefixStore("group", store), 3)
        assert [(job.rank, job.size) for job in jobs] == [(0, 3), (1, 3), (2, 3)]
        assert sums(jobs) == [6.0] * 3
        leave_all(jobs)
    assert not runtime.is_initialized()


def test_groups_in_one_store_do_not_meet() -> None:
    store = HashStore()
    pairs = [join_all(PrefixStore(name, store), 2) for name in ("a", "b")]
    assert [sums(jobs) for jobs in pairs] == [[3.0, 3.0]] * 2
    assert len({job.environ["BYTEPS_JOB_ID"] for jobs in pairs for job in jobs}) == 2
    for jobs in pairs:
        leave_all(jobs)


# Without a secret, ranks use that of the user.
@pytest.mark.parametrize("secret", ["known to all ranks already", ""])
def test_no_secret_that_the_ranks_have_goes_to_the_store(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_SECRET", secret)
    store = HashStore()
    jobs = join_all(store, 2)
    assert sums(jobs) == [3.0, 3.0]
    assert b'"secret": ""' in store.get("byteps/answer/1")
    leave_all(jobs)


def test_a_rank_0_that_does_not_come() -> None:
    with pytest.raises(TimeoutError, match=r"rank 10 did not come to process group 'some' of 2 ranks within 0\.2 s"):
        join_group(info_of(HashStore(), 1, 2, 0.2), nothing_wrong)


def test_all_who_came_hear_who_did_not() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        joins = [
            pool.submit(join_group, info_of(store, rank, 4, limit), nothing_wrong)
            for rank, limit in ((0, 0.5), (2, 20))
        ]
        for join in joins:
            with pytest.raises(TimeoutError, match=r"ranks 11, 13 did not come to process group 'some' of 4 ranks"):
                join.result(timeout=10)


def test_who_gives_up_before_rank_0_names_the_missing_too() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(join_group, info_of(store, 1, 3, 1.0), nothing_wrong)
        time.sleep(0.5)
        late = pool.submit(join_group, info_of(store, 0, 3, 1.0), nothing_wrong)
        for join in (early, late):
            with pytest.raises(TimeoutError, match=r"^rank 12 did not come to process group 'some' of 3 ranks"):
                join.result(timeout=10)


def test_a_rank_0_that_comes_and_does_not_answer() -> None:
    store = HashStore()
    store.set("byteps/here/1/0", "")
    with pytest.raises(TimeoutError, match=r"all 2 ranks came .* rank 10 has not answered within 0\.2 s"):
        join_group(info_of(store, 1, 2, 0.2), nothing_wrong)


def test_waiting_ends_when_it_is_in_vain() -> None:
    def watch() -> None:
        raise PeerLostError("rank 11 is lost")

    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(join_group, info_of(store, 0, 3, 60.0), watch)
        third = pool.submit(join_group, info_of(store, 2, 3, 60.0), nothing_wrong)
        for join in (first, third):
            with pytest.raises(PeerLostError, match="rank 11 is lost"):
                join.result(timeout=20)


def test_one_rank_needs_nobody() -> None:
    job = join_group(info_of(HashStore(), 0, 1), nothing_wrong)
    assert sums([job]) == [1.0]
    runtime.leave(job)
    runtime.leave(job)  # may be repeated


def test_a_group_whose_gloo_fails_leaves_no_job_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(group, "InnerGloo", fail)
    options = SimpleNamespace(
        store=HashStore(),
        group_rank=0,
        group_size=1,
        timeout=timedelta(seconds=20),
        group_id="default",
        global_ranks_in_group=[],
    )
    with pytest.raises(RuntimeError, match="no such device"):
        group.create_group(options, None)
    assert not runtime.is_initialized()


def test_where_rank_0_is_reached(tmp_path: Path) -> None:
    store = TCPStore("localhost", 0, 1, is_master=True)
    assert reachable_host(PrefixStore("a", PrefixStore("b", store)), {}) == "localhost"
    assert reachable_host(store, {"DMLC_NODE_HOST": "127.0.0.9"}) == "127.0.0.9"
    assert reachable_host(HashStore(), {}) == "127.0.0.1"
    assert reachable_host(FileStore(str(tmp_path / "file"), 1), {"DMLC_NODE_HOST": "127.0.0.9"}) == "127.0.0.9"


def test_only_loopback_is_opened_for_loopback() -> None:
    with listen("127.0.0.1") as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    with pytest.raises(InvalidArgumentError, match="DMLC_NODE_HOST"):
        listen("no.such.host.invalid")
