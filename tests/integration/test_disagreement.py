"""Ranks that ask for different things under one name."""

from __future__ import annotations

import pytest
from integration import disagreement_cases
from support.cases import Outcome, names_of, run_cases


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_cases("integration.disagreement_cases", 2, tmp_path_factory.mktemp("disagreement"))


@pytest.mark.parametrize("case", names_of(disagreement_cases))
def test_case(case: str, outcome: Outcome) -> None:
    outcome.check(case)


def test_the_job_ends_well(outcome: Outcome) -> None:
    outcome.check_exit()
