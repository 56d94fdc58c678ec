"""DistributedDataParallel, CrossBarrier, traced push_pull and the recipes, in real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.case_jobs import CaseJob, each_case, each_job, jobs_of, outcome_of
from support.job import job

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

from frameworks import (  # noqa: E402
    torch_cross_barrier_cases,
    torch_cross_barrier_model_cases,
    torch_cross_barrier_rule_cases,
    torch_ddp_cases,
    torch_ddp_hook_cases,
    torch_ddp_module_cases,
    torch_ddp_partial_cases,
    torch_library_cases,
    torch_recipes_cases,
)

JOBS = jobs_of(
    {
        torch_ddp_cases: [1, 4],
        torch_ddp_partial_cases: [1, 3],
        torch_ddp_module_cases: [1, 3],
        torch_ddp_hook_cases: [1, 3],
        torch_cross_barrier_cases: [1, 3],
        torch_cross_barrier_model_cases: [1, 3],
        torch_cross_barrier_rule_cases: [1, 3],
        torch_library_cases: [1, 2],
        torch_recipes_cases: [1, 3],
    }
)
LOST_RANK = Path(__file__).with_name("torch_lost_rank.py")


@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()


@pytest.mark.parametrize("mode", ["ddp", "hook", "cross_barrier", "library", "sync_batch_norm", "metric"])
def test_a_rank_that_dies_while_the_others_train(mode: str, tmp_path: Path) -> None:
    with job([LOST_RANK, mode, tmp_path / "store"], 3, tmp_path) as running:
        finished = running.wait(deadline_s=90)
    assert finished[1].returncode == 9, finished[1].output
    for survivor in (finished[0], finished[2]):
        assert survivor.returncode == 3, survivor.output
        assert "rank 1 (host" in survivor.output, survivor.output
