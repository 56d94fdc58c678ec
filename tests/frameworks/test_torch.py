"""byteps.torch in real jobs: each case of the imported modules runs on all ranks at once."""

from __future__ import annotations

import pytest
from support.case_jobs import CaseJob, each_case, each_job, jobs_of, outcome_of

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

from frameworks import (  # noqa: E402
    torch_backward_end_cases,
    torch_bucket_cases,
    torch_differences_cases,
    torch_ops_cases,
    torch_optimizer_cases,
    torch_sparse_cases,
    torch_training_cases,
)

JOBS = jobs_of(
    {
        torch_ops_cases: [1, 2],
        torch_training_cases: [1, 3],
        torch_backward_end_cases: [1, 3],
        torch_bucket_cases: [1, 3],
        torch_sparse_cases: [1, 4],
        torch_optimizer_cases: [1, 3],
        torch_differences_cases: [3],
    }
)


@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()
