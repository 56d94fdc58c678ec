"""The conformance suite for NumPy and PyTorch; other tests run it for other frameworks."""

from __future__ import annotations

import pytest
from frameworks import conformance
from support.case_jobs import CaseJob, each_case, each_job, outcome_of
from support.installed import skip_unless_installed

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

JOBS = [
    CaseJob(conformance.__name__, ranks, adapter)
    for adapter, counts in {"numpy": (1, 2, 4), "torch": (1, 2)}.items()
    for ranks in counts
]


@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    skip_unless_installed(job.adapter)  # the package has the adapter's name
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    skip_unless_installed(job.adapter)
    outcome_of(job, tmp_path_factory).check_exit()
