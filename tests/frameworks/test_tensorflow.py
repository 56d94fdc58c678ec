"""byteps.tensorflow in real jobs. The cases are in modules of cases.

Every case runs on all ranks at once.

They are named and not imported here: TensorFlow would take this process seconds, and only the ranks
need it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.case_jobs import CaseJob, each_case, each_job, jobs_of, outcome_of
from support.installed import skip_unless_installed
from support.job import job as started_job

skip_unless_installed("tensorflow")

from frameworks import conformance  # noqa: E402

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

JOBS = jobs_of(
    {
        "frameworks.tensorflow_ops_cases": [1, 4],
        "frameworks.tensorflow_training_cases": [1, 3],
    }
)
CONFORMANCE_JOBS = [CaseJob(conformance.__name__, ranks, "tensorflow") for ranks in (1, 2)]
# Of the oldest TensorFlow that the operators promise to work in, in an environment of its own
# (tools/bootstrap.sh).
OLDEST = Path(sys.prefix, "oldest-tensorflow", "bin", "python")
OLD_JOBS = [CaseJob(job.module, ranks, python=OLDEST) for job, ranks in ((JOBS[0], 1), (JOBS[3], 2))]
LOST_RANK = Path(__file__).with_name("tensorflow_lost_rank.py")


@each_case(JOBS + CONFORMANCE_JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS + CONFORMANCE_JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()


@each_case(OLD_JOBS)
def test_case_in_the_oldest_tensorflow(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if not OLDEST.exists():
        pytest.skip(f"{OLDEST} is missing: tools/bootstrap.sh test-all makes it")
    outcome_of(job, tmp_path_factory).check(case)


@pytest.mark.parametrize("mode", ["eager", "function", "fit"])
def test_a_rank_that_dies_while_the_others_train(mode: str, tmp_path: Path) -> None:
    with started_job([LOST_RANK, mode], 3, tmp_path) as running:
        finished = running.wait(deadline_s=90)
    assert finished[1].returncode == 9, finished[1].output
    for survivor in (finished[0], finished[2]):
        assert survivor.returncode == 3, survivor.output
        assert f"\n{'PeerLostError' if mode == 'eager' else 'UnknownError'} " in survivor.output, survivor.output
        assert "rank 1 (host" in survivor.output, survivor.output
