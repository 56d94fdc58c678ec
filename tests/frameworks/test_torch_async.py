"""Asynchronous training in real jobs: servers or none; slow, late, dead and disagreeing ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.case_jobs import CaseJob, each_case, each_job, jobs_of, outcome_of
from support.cluster import Cluster, wait_until

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

from frameworks import torch_async_cases  # noqa: E402

from byteps.torch import asynchronous  # noqa: E402

PROGRAM = Path(__file__).with_name("async_rank_program.py")


JOBS = jobs_of({torch_async_cases: [1, 3]})


@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()


def asynchronous_job(
    folder: Path, plans: list[list[str]], staleness: str, servers: int = 0, env: Mapping[str, str] | None = None
) -> Cluster:
    """Starts a job whose rank r does `plans[r]`. Servers, if there are any, store the weights."""
    own = {
        "BYTEPS_ENABLE_ASYNC": "1",
        "BYTEPS_START_TIMEOUT_S": "120",  # servers start long before ranks, which import torch
        "BYTEPS_STALENESS": staleness,
        "BYTEPS_PLACEMENT": "ps" if servers else "allreduce",
    }
    cluster = Cluster(folder, workers=len(plans), servers=servers, hosted=True, env=own | dict(env or {}))
    for rank, plan in enumerate(plans):
        cluster.start_rank(rank, *plan, program=PROGRAM, uses_torch=True)
    for number in range(servers):
        cluster.start_server(number)
    return cluster


def weights_of(output: str) -> list[str]:
    """Returns what `step` and `settle` have printed."""
    return [line.split("weight ")[1] for line in output.splitlines() if "weight " in line]


@pytest.mark.parametrize("servers", [0, 1, 2])
@pytest.mark.parametrize("staleness", ["0", "2", "inf"])
def test_steps_of_all_ranks_add_up(tmp_path: Path, servers: int, staleness: str) -> None:
    with asynchronous_job(tmp_path, 2 * [["step*20", "settle"]], staleness, servers) as cluster:
        assert [cluster[f"rank {rank}"].end() for rank in (0, 1)] == [0, 0], cluster.describe()
        settled = {weights_of(cluster[f"rank {rank}"].output)[-1] for rank in (0, 1)}
        # Without a bound, a late rank makes no update in its first step.
        assert settled <= {"40"} if staleness == "0" else settled <= {"39", "40"}, cluster.describe()
        assert len(settled) == 1, cluster.describe()
        assert all(cluster[f"server {number}"].end() == 0 for number in range(servers))


@pytest.mark.parametrize(
    ("placement", "servers", "env"),
    [
        ("auto", 0, {}),
        ("ps", 1, {}),
        ("auto", 1, {}),
        ("weights:1,1,1", 1, {}),
        ("allreduce", 0, {"BYTEPS_SHM": "0"}),
        ("ps", 1, {"BYTEPS_SHM": "0", "BYTEPS_PARTITION_BYTES": "4096"}),
    ],
    ids=["workers", "server", "shared-out", "everywhere", "workers-tcp", "server-tcp"],
)
def test_weights_are_kept_anywhere(tmp_path: Path, placement: str, servers: int, env: Mapping[str, str]) -> None:
    """Four ranks on two machines: each reaches some services by shared memory, others by TCP."""
    settings = {"BYTEPS_PLACEMENT": placement, "BYTEPS_NIC_PROBE": "0", "DMLC_NUM_WORKER": "4"}
    with asynchronous_job(tmp_path, [], "1", servers, env=settings | env) as cluster:
        for rank in range(4):
            plan = ("step*10", "settle")
            cluster.start_rank(
                rank, *plan, program=PROGRAM, env={"BYTEPS_MACHINE": f"machine{rank // 2}"}, uses_torch=True
            )
        ends = [cluster[f"rank {rank}"].end(deadline_s=120) for rank in range(4)]
        assert ends == [0, 0, 0, 0], cluster.describe()
        settled = {weights_of(cluster[f"rank {rank}"].output)[-1] for rank in range(4)}
        assert len(settled) == 1 and settled <= {"37", "38", "39", "40"}, cluster.describe()


@pytest.mark.parametrize("servers", [0, 1])
def test_a_rank_is_no_further_ahead_than_the_staleness_says(tmp_path: Path, servers: int) -> None:
    plans = [["step*20", "settle"], ["step", "pause", "step*19", "settle"]]
    with asynchronous_job(tmp_path, plans, "2", servers, env={"BYTEPS_STALL_WARNING_S": "1"}) as cluster:
        fast, slow = cluster["rank 0"], cluster["rank 1"]
        slow.wait_for("did step\n")
        fast.wait_for("step 3: ")  # two more than the slow one, which is the limit
        # The fourth step: the first round has only read the weights.
        said_to_wait = "round 5 of rank 0"
        wait_until(lambda: any(said_to_wait in member.output for member in cluster.members.values()), cluster.describe)
        assert "step 4: " not in fast.output
        slow.resume_plan()
        assert fast.end() == slow.end() == 0, cluster.describe()
        assert weights_of(fast.output)[-1] in ("39", "40"), cluster.describe()


def test_a_rank_that_comes_late_gets_what_there_is(tmp_path: Path) -> None:
    plans = [["step*5", "linger"], ["pause", "step*2", "linger"]]
    with asynchronous_job(tmp_path, plans, "inf", servers=1) as cluster:
        cluster["rank 0"].wait_for("did step*5")
        cluster["rank 1"].resume_plan()
        cluster["rank 1"].wait_for("did step*2")
        assert weights_of(cluster["rank 1"].output) == ["5", "6"], cluster.describe()


def test_a_rank_that_has_left_is_not_needed_any_more(tmp_path: Path) -> None:
    plans = [["step*5"], ["step", "pause", "step*3", "linger"]]
    with asynchronous_job(tmp_path, plans, "inf", servers=1, env={"BYTEPS_HOST_SCHEDULER": "0"}) as cluster:
        cluster.start_scheduler()
        assert cluster["rank 0"].end() == 0, cluster.describe()
        cluster["rank 1"].wait_for("did step\n")
        cluster["rank 1"].resume_plan()
        cluster["rank 1"].wait_for("did step*3")
        assert weights_of(cluster["rank 1"].output)[-1] in ("8", "9"), cluster.describe()


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("staleness", ["1", "inf"])
def test_a_rank_that_dies_ends_the_others(tmp_path: Path, servers: int, staleness: str) -> None:
    plans = [["steps"], ["step*3", "die"], ["steps"]]
    with asynchronous_job(tmp_path, plans, staleness, servers) as cluster:
        for rank in (0, 2):
            cluster[f"rank {rank}"].check_raised("PeerLostError", "rank 1")


@pytest.mark.parametrize("staleness", ["0", "2", "inf"])
def test_steps_add_up_although_servers_die(tmp_path: Path, staleness: str) -> None:
    with asynchronous_job(tmp_path, 2 * [["step*60", "settle"]], staleness, servers=2) as cluster:
        for step, number in ((3, 0), (20, 1)):
            for rank in (0, 1):
                cluster[f"rank {rank}"].wait_for(f"step {step}: ")
            cluster[f"server {number}"].kill()
        assert [cluster[f"rank {rank}"].end() for rank in (0, 1)] == [0, 0], cluster.describe()
        settled = {weights_of(cluster[f"rank {rank}"].output)[-1] for rank in (0, 1)}
        # Without a bound, a late rank makes no update in its first step.
        assert len(settled) == 1 and settled <= {"119", "120"}, cluster.describe()


def test_without_failover_a_server_that_dies_ends_all(tmp_path: Path) -> None:
    env = {"BYTEPS_FAILOVER": "off"}
    with asynchronous_job(tmp_path, 2 * [["steps"]], "inf", servers=1, env=env) as cluster:
        for rank in (0, 1):
            cluster[f"rank {rank}"].wait_for("step 3: ")
        cluster["server 0"].kill()
        for rank in (0, 1):
            cluster[f"rank {rank}"].check_raised("PeerLostError", "server 0")


def test_a_rank_that_leaves_while_it_is_needed_is_named(tmp_path: Path) -> None:
    with asynchronous_job(tmp_path, [["steps"], ["step*3"]], "2", servers=1) as cluster:
        assert cluster["rank 1"].end() == 0, cluster.describe()
        cluster["rank 0"].check_raised("PeerLostError", "rank 1", "has left the job")


def test_a_rank_that_waits_too_long_names_the_slow_one(tmp_path: Path) -> None:
    plans = [["steps"], ["step", "linger"]]
    with asynchronous_job(tmp_path, plans, "1", env={"BYTEPS_OP_TIMEOUT_S": "2"}) as cluster:
        cluster["rank 0"].check_raised("TimeoutError", "for rank 1")


@pytest.mark.parametrize(
    ("argument", "staleness", "chosen"),
    [(None, None, 3), (False, None, None), (True, None, 3), (None, 0, 0), (True, 2, 2)],
)
def test_arguments_win_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, argument: bool | None, staleness: float | None, chosen: float | None
) -> None:
    job = SimpleNamespace(config=SimpleNamespace(asynchronous=True, staleness=3))
    monkeypatch.setattr(asynchronous, "current_job", lambda: job)
    assert asynchronous.choose_staleness(argument, staleness) == chosen


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"BYTEPS_ENABLE_ASYNC": "0"}, ("asynchronous training with staleness=1", "backward_passes_per_step")),
        ({"BYTEPS_STALENESS": "inf"}, ("staleness=1", "staleness=inf")),
    ],
    ids=["synchronous", "other-staleness"],
)
def test_ranks_that_disagree_are_named(tmp_path: Path, setting: Mapping[str, str], said: tuple[str, ...]) -> None:
    with asynchronous_job(tmp_path, [["step", "linger"]], "1", env={"DMLC_NUM_WORKER": "2"}) as cluster:
        cluster.start_rank(1, "step", program=PROGRAM, env=setting, uses_torch=True)
        for rank in (0, 1):
            cluster[f"rank {rank}"].check_raised("InvalidArgumentError", "rank 0", "rank 1", *said)
