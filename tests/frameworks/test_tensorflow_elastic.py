"""byteps.tensorflow.elastic and byteps.keras.elastic in real jobs; every case runs on all ranks at once.

Modules are named and not imported, as in test_tensorflow.py.
"""

from __future__ import annotations

import pytest
from support.case_jobs import CaseJob, each_case, each_job, jobs_of, outcome_of
from support.installed import skip_unless_installed

skip_unless_installed("keras", "tensorflow", "torch")

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

JOBS = [
    *jobs_of({"frameworks.tensorflow_elastic_cases": [1, 2], "frameworks.keras_elastic_cases": [2]}),
    *jobs_of({"frameworks.keras_elastic_cases": [1]}, KERAS_BACKEND="torch"),
]


@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()
