"""byteps.keras in real jobs.

What is checked is in the modules of cases; every case runs on all ranks at once.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.case_jobs import CaseJob, each_case, each_job, jobs_of, outcome_of
from support.installed import skip_unless_installed
from support.job import ROOT

skip_unless_installed("keras", "tensorflow", "torch")

pytestmark = pytest.mark.timeout(500)  # the first test of a job waits for all its cases

JOBS = [
    *jobs_of(
        {"frameworks.keras_cases": [1, 3], "frameworks.keras_more_cases": [1, 3]},
        deadline_s=450,
        TF_CPP_MIN_LOG_LEVEL="2",
    ),
    *jobs_of({"frameworks.keras_torch_cases": [3]}, KERAS_BACKEND="torch"),
]


@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()


REFUSAL = """
import keras
import byteps.keras as bps
from byteps.errors import UnsupportedError

bps.init()
optimizer = keras.optimizers.SGD()
for backend in ("numpy", "jax"):
    keras.backend.backend = lambda: backend
    try:
        bps.DistributedOptimizer(optimizer)
    except UnsupportedError as error:
        print(backend, error)
"""


def test_other_backends_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSAL],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KERAS_BACKEND": "torch",
        },  # jax is not installed, and Keras needs it for numpy
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    numpy, jax = done.stdout.splitlines()
    assert numpy.startswith("numpy ") and "tensorflow or torch" in numpy
    assert jax.startswith("jax ") and "byteps.numpy.push_pull" in jax
