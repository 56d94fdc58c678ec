"""byteps.mxnet in real jobs, in an environment of its own.

What is checked is in the modules of cases.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from frameworks import conformance
from support.case_jobs import CaseJob, each_case, each_job, outcome_of
from support.job import job as started_job

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

PYTHON = Path(sys.prefix, "mxnet", "bin", "python")
JOBS = [
    CaseJob(module, ranks, adapter, PYTHON)
    for module, adapter, counts in (
        (conformance.__name__, "mxnet", (1, 2, 4)),
        ("frameworks.mxnet_ops_cases", "", (1, 3)),
        ("frameworks.mxnet_training_cases", "", (1, 4)),
        ("frameworks.mxnet_kvstore_cases", "", (1, 4)),
        ("frameworks.mxnet_failure_cases", "", (2, 4)),
    )
    for ranks in counts
]
ASYNC_JOBS = [
    CaseJob("frameworks.mxnet_async_cases", ranks, python=PYTHON, env=(("BYTEPS_ENABLE_ASYNC", "1"),))
    for ranks in (1, 3)
]
# The engine that has no threads: what is told to it is done when the call returns, and errors come
# from there.
NAIVE_JOBS = [
    CaseJob("frameworks.mxnet_naive_cases", ranks, python=PYTHON, env=(("MXNET_ENGINE_TYPE", "NaiveEngine"),))
    for ranks in (1, 2)
]
ALL_JOBS = [*JOBS, *ASYNC_JOBS, *NAIVE_JOBS]
LOST_RANK = Path(__file__).with_name("mxnet_lost_rank.py")
EARLY_END = Path(__file__).with_name("mxnet_early_end_program.py")


@pytest.fixture(autouse=True)
def environment() -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is missing: tools/bootstrap.sh test-all makes it")


@each_case(ALL_JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(ALL_JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()


@pytest.mark.parametrize("mode", ["wait_to_read", "waitall", "asnumpy", "fit"])
def test_a_rank_that_dies_while_the_others_train(mode: str, tmp_path: Path) -> None:
    with started_job([LOST_RANK, mode], 3, tmp_path, python=PYTHON) as running:
        finished = running.wait(deadline_s=90)
    assert finished[1].returncode == 9, finished[1].output
    for survivor in (finished[0], finished[2]):
        assert survivor.returncode == 3, survivor.output
        assert "\nPeerLostError " in survivor.output, survivor.output
        assert "rank 1 (host" in survivor.output, survivor.output


def test_a_program_may_end_before_its_arrays_are_computed(tmp_path: Path) -> None:
    with started_job([EARLY_END], 2, tmp_path, python=PYTHON) as running:
        finished = running.wait(deadline_s=60)
    assert [each.returncode for each in finished] == [0, 0], [each.output for each in finished]
