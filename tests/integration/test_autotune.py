"""BYTEPS_AUTOTUNE=1 in real jobs: partitions and credit change while they run, sums do not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.job import ROOT, run_job

PROGRAM = ROOT / "tests/support/training_steps.py"
RANKS = 4
SEARCH_STEPS = 50  # a search takes at most so many
STEPS = 60


def train(folder: Path, autotune: bool, **env: str) -> tuple[list[Mapping[str, Any]], str]:
    """Returns the results of each rank and the output of rank 0."""
    folder.mkdir()
    settings = {
        "BYTEPS_AUTOTUNE": str(int(autotune)),
        "BYTEPS_PARTITION_BYTES": str(256 << 10),
        "BYTEPS_LOG_LEVEL": "info",
        **env,
    }
    finished = run_job([PROGRAM, folder, str(STEPS)], RANKS, folder, env=settings, deadline_s=120)
    for rank in finished:
        assert rank.returncode == 0, rank.output
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)], finished[0].output


def test_changes_what_it_may_on_all_ranks_and_not_a_bit_of_a_sum(tmp_path: Path) -> None:
    configured, silence = train(tmp_path / "configured", autotune=False)
    tuned, log = train(tmp_path / "tuned", autotune=True)
    assert {rank["digest"] for rank in configured + tuned} == {configured[0]["digest"]}
    assert "autotune" not in silence
    assert log.count("autotune tries partitions") >= 4, log
    assert "autotune keeps" in log or "autotune takes" in log, log
    for rank in configured:
        assert rank["metrics"]["plan_changes"] == 0
        assert rank["metrics"]["partition_factor"] == 1
    for rank in tuned:
        assert rank["metrics"]["plan_changes"] >= 4
    check_plans([[tuple(plan) for plan in rank["plans"]] for rank in tuned])


def check_plans(plans: list[list[tuple[float, float]]]) -> None:
    """Checks plans by rank and step: ranks agree after every step, and the search ends."""
    assert all(of_rank == plans[0] for of_rank in plans), plans
    configured, settled = plans[0][0], plans[0][SEARCH_STEPS:]
    assert len(set(plans[0])) >= 4, plans[0]
    # A choice that does not hold is taken back.
    first_return = settled.index(configured) if configured in settled else len(settled)
    assert settled == settled[:1] * first_return + [configured] * (len(settled) - first_return), settled


def test_without_shared_memory(tmp_path: Path) -> None:
    configured, _ = train(tmp_path / "configured", autotune=False, BYTEPS_SHM="0")
    tuned, _ = train(tmp_path / "tuned", autotune=True, BYTEPS_SHM="0")
    assert {rank["digest"] for rank in configured + tuned} == {configured[0]["digest"]}
