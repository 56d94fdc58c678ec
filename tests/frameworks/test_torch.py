"""byteps.torch in real jobs. What is checked is in the modules of cases; every case runs on all ranks at once."""

from __future__ import annotations

import pytest
from support.cases import Outcome, names_of, run_cases

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

from frameworks import torch_ops_cases, torch_training_cases  # noqa: E402


def outcome_of(module: object, ranks: list[int]) -> object:
    @pytest.fixture(scope="module", params=ranks, ids=lambda ranks: f"{ranks}-ranks")
    def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
        return run_cases(module.__name__, request.param, tmp_path_factory.mktemp("job"))

    return outcome


ops = outcome_of(torch_ops_cases, [1, 2])
training = outcome_of(torch_training_cases, [1, 2, 4])


@pytest.mark.parametrize("case", names_of(torch_ops_cases))
def test_ops(ops: Outcome, case: str) -> None:
    ops.check(case)


@pytest.mark.parametrize("case", names_of(torch_training_cases))
def test_training(training: Outcome, case: str) -> None:
    training.check(case)


def test_every_rank_exits_well_after_ops(ops: Outcome) -> None:
    ops.check_exit()


def test_every_rank_exits_well_after_training(training: Outcome) -> None:
    training.check_exit()
