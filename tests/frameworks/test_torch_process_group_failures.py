"""The backend byteps of torch.distributed: errors when a rank dies or does not come."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from frameworks.process_group_runs import run_in_store, run_launcher

pytestmark = pytest.mark.timeout(300)

PROGRAM = Path(__file__).with_name("process_group_failures_program.py")
DEADLINE_S = 90


@pytest.mark.parametrize(
    ("mode", "ranks"),
    [
        ("in_ddp", 2),
        ("in_ddp", 4),
        ("in_ddp_with_a_hook_in_cpp", 2),
        ("in_fsdp2", 2),
        ("in_fsdp2", 4),
        ("in_hsdp", 4),
    ],
)
def test_a_rank_that_dies_in_backward_is_named_to_the_others(tmp_path: Path, mode: str, ranks: int) -> None:
    *others, dead = run_in_store([PROGRAM, mode], ranks, tmp_path, deadline_s=DEADLINE_S)
    assert dead.returncode == -signal.SIGKILL and "dies" in dead.output, dead.output
    for finished in others:
        assert finished.returncode == 1, finished.output
        assert "PeerLostError" in finished.output and f"rank {ranks - 1}" in finished.output, finished.output


@pytest.mark.parametrize("moment", ["before_a_subgroup", "in_a_subgroup"])
def test_a_rank_that_dies_ends_the_waiters_of_its_subgroup(tmp_path: Path, moment: str) -> None:
    first, *_, dead = run_in_store([PROGRAM, moment], 3, tmp_path)
    assert dead.returncode == -signal.SIGKILL
    assert first.returncode == 1, first.output
    assert ("PeerLostError" in first.output and "rank 1 is global rank 2" in first.output) or (
        "AbortedError: rank 2 (" in first.output
    ), first.output


def test_a_rank_that_dies_in_the_trainer_of_hugging_face_ends_torchrun() -> None:
    """Torchrun kills the others when it notices, here late, so that they can print errors."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--monitor-interval=15"]
    finished = run_launcher([*torchrun, str(PROGRAM), "in_the_trainer"], DEADLINE_S)
    assert finished.returncode == 1 and "dies" in finished.stdout, finished.stdout
    assert "PeerLostError" in finished.stdout and "rank 1 (" in finished.stdout, finished.stdout


@pytest.mark.parametrize("how", ["", "_in_a_group_with_a_timeout", "_after_a_new_timeout"])
def test_a_missing_rank_is_named_at_the_timeout_of_the_group(tmp_path: Path, how: str) -> None:
    first, second = run_in_store([PROGRAM, f"one_rank_is_missing{how}"], 2, tmp_path)
    assert first.returncode == 1 and second.returncode == 0, first.output + second.output
    assert "TimeoutError" in first.output and "rank 1" in first.output, first.output
