"""The backend byteps of torch.distributed does not leak memory, threads or files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from frameworks.process_group_runs import check_all_well, run_in_store

pytestmark = pytest.mark.timeout(300)

PROGRAM = Path(__file__).with_name("process_group_leaks_program.py")


@pytest.mark.parametrize(
    ("what", "ranks"),
    [
        ("steps_of_ddp", 2),
        ("steps_of_fsdp2", 2),
        ("collectives", 2),
        ("groups", 3),
        ("process_groups", 1),
        ("process_groups", 2),
    ],
)
def test_nothing_is_left_behind(tmp_path: Path, what: str, ranks: int) -> None:
    check_all_well(run_in_store([PROGRAM, what], ranks, tmp_path, deadline_s=240))
