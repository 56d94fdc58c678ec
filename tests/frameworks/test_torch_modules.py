"""DistributedDataParallel, CrossBarrier, traced push_pull and the recipes, in real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cases import Outcome, names_of, run_cases
from support.job import job

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

from frameworks import (  # noqa: E402
    torch_cross_barrier_cases,
    torch_cross_barrier_model_cases,
    torch_cross_barrier_rule_cases,
    torch_ddp_cases,
    torch_ddp_hook_cases,
    torch_ddp_module_cases,
    torch_ddp_partial_cases,
    torch_library_cases,
    torch_recipes_cases,
)

MODULES = {
    "ddp": torch_ddp_cases,
    "ddp_partial": torch_ddp_partial_cases,
    "ddp_module": torch_ddp_module_cases,
    "ddp_hook": torch_ddp_hook_cases,
    "cross_barrier": torch_cross_barrier_cases,
    "cross_barrier_model": torch_cross_barrier_model_cases,
    "cross_barrier_rule": torch_cross_barrier_rule_cases,
    "library": torch_library_cases,
    "recipes": torch_recipes_cases,
}
RANKS = dict.fromkeys(MODULES, (1, 2, 4)) | {"library": (1, 2)}
JOBS = [(name, ranks) for name, counts in RANKS.items() for ranks in counts]
CASES = [(name, ranks, case) for name, ranks in JOBS for case in names_of(MODULES[name])]
LOST_RANK = Path(__file__).with_name("torch_lost_rank.py")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Outcome]:
    return {}


@pytest.fixture
def outcome(
    request: pytest.FixtureRequest,
    outcomes: dict[tuple[str, int], Outcome],
    tmp_path_factory: pytest.TempPathFactory,
) -> Outcome:
    name, ranks = request.param
    if (name, ranks) not in outcomes:
        outcomes[name, ranks] = run_cases(MODULES[name].__name__, ranks, tmp_path_factory.mktemp(name))
    return outcomes[name, ranks]


@pytest.mark.parametrize(
    ("outcome", "case"),
    [pytest.param((name, ranks), case, id=f"{name}-{ranks}-{case}") for name, ranks, case in CASES],
    indirect=["outcome"],
)
def test_case(outcome: Outcome, case: str) -> None:
    outcome.check(case)


@pytest.mark.parametrize("outcome", JOBS, ids=lambda job: f"{job[0]}-{job[1]}", indirect=True)
def test_every_rank_exits_well(outcome: Outcome) -> None:
    outcome.check_exit()


@pytest.mark.parametrize("mode", ["ddp", "hook", "cross_barrier", "library", "sync_batch_norm", "metric"])
def test_a_rank_that_dies_while_the_others_train(mode: str, tmp_path: Path) -> None:
    with job([LOST_RANK, mode, tmp_path / "store"], 3, tmp_path) as running:
        finished = running.wait(deadline_s=90)
    assert finished[1].returncode == 9, finished[1].output
    for survivor in (finished[0], finished[2]):
        assert survivor.returncode == 3, survivor.output
        assert "rank 1 (host" in survivor.output, survivor.output
