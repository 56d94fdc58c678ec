"""byteps.keras in real jobs. What is checked is in the modules of cases; every case runs on all ranks at once."""

from __future__ import annotations

import importlib.util

import pytest
from support.case_jobs import CaseJob, each_case, each_job, jobs_of, outcome_of

for name in ("keras", "tensorflow", "torch"):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(500)  # the first test of a job waits for all its cases

JOBS = [
    *jobs_of(
        {"frameworks.keras_cases": [1, 2, 4], "frameworks.keras_more_cases": [1, 2]},
        deadline_s=450,
        TF_CPP_MIN_LOG_LEVEL="2",
    ),
    *jobs_of({"frameworks.keras_torch_cases": [2]}, KERAS_BACKEND="torch"),
]


@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()


@pytest.mark.parametrize(("backend", "advice"), [("jax", "byteps.numpy.push_pull"), ("numpy", "tensorflow or torch")])
def test_other_backends_are_refused(monkeypatch: pytest.MonkeyPatch, backend: str, advice: str) -> None:
    import keras

    from byteps.errors import UnsupportedError
    from byteps.keras.backend import current_backend

    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    with pytest.raises(UnsupportedError, match=advice):
        current_backend()
