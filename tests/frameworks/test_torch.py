"""byteps.torch in real jobs. What is checked is in the modules of cases; every case runs on all ranks at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType

import pytest
from support.cases import Outcome, names_of, run_cases

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

from frameworks import (  # noqa: E402
    torch_backward_end_cases,
    torch_bucket_cases,
    torch_ops_cases,
    torch_optimizer_cases,
    torch_sparse_cases,
    torch_training_cases,
)

RANKS = {
    torch_ops_cases: [1, 2],
    torch_training_cases: [1, 2, 4],
    torch_backward_end_cases: [1, 2, 4],
    torch_bucket_cases: [1, 2, 4],
    torch_sparse_cases: [1, 2, 4],
    torch_optimizer_cases: [1, 2, 4],
}
JOBS = [(module, ranks) for module in RANKS for ranks in RANKS[module]]


def id_of(module: ModuleType, ranks: int) -> str:
    return f"{module.__name__.removeprefix('frameworks.torch_').removesuffix('_cases')}-{ranks}-ranks"


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ModuleType, int], Outcome]:
    """Runs each job once, when the first test asks for it."""

    @cache
    def outcome(module: ModuleType, ranks: int) -> Outcome:
        return run_cases(module.__name__, ranks, tmp_path_factory.mktemp("job"))

    return outcome


@pytest.mark.parametrize(
    ("module", "ranks", "case"),
    [
        pytest.param(module, ranks, case, id=f"{id_of(module, ranks)}-{case}")
        for module, ranks in JOBS
        for case in names_of(module)
    ],
)
def test_case(outcome_of: Callable[[ModuleType, int], Outcome], module: ModuleType, ranks: int, case: str) -> None:
    outcome_of(module, ranks).check(case)


@pytest.mark.parametrize(("module", "ranks"), [pytest.param(*job, id=id_of(*job)) for job in JOBS])
def test_every_rank_exits_well(
    outcome_of: Callable[[ModuleType, int], Outcome], module: ModuleType, ranks: int
) -> None:
    outcome_of(module, ranks).check_exit()
