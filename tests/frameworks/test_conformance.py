"""The conformance suite, for every adapter, in jobs of 1, 2 and 4 ranks."""

from __future__ import annotations

import pytest
from frameworks import conformance
from support.cases import Outcome, names_of, run_cases

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

JOBS = [
    ("numpy", 1),
    ("numpy", 2),
    ("numpy", 4),
    ("torch", 1),
    ("torch", 2),
]  # adapter, which is a package too, and ranks


@pytest.fixture(scope="module", params=JOBS, ids=lambda job: f"{job[0]}-{job[1]}")
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    adapter, ranks = request.param
    pytest.importorskip(adapter)
    return run_cases("frameworks.conformance", ranks, tmp_path_factory.mktemp(adapter), adapter)


@pytest.mark.parametrize("case", names_of(conformance))
def test_case(outcome: Outcome, case: str) -> None:
    outcome.check(case)


def test_every_rank_exits_well(outcome: Outcome) -> None:
    outcome.check_exit()
