"""Ranks that ask for different things under one name."""

from __future__ import annotations

import pytest
from integration import disagreement_cases
from support.case_jobs import CaseJob, each_case, each_job, jobs_of, outcome_of

JOBS = jobs_of({disagreement_cases: [2]})


@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS)
def test_the_job_ends_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()
