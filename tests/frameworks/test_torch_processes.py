"""Whole programs: a rank dies; nothing leaks; denormals are summed, though programs flush them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.job import Finished, run_job

pytest.importorskip("torch")

from frameworks.torch_rank import MODES, RAISED

PROGRAM = Path(__file__).with_name("torch_rank.py")
DENORMALS = Path(__file__).with_name("torch_denormals_program.py")

pytestmark = pytest.mark.timeout(300)


def held(finished: Finished) -> list[tuple[int, ...]]:
    """Returns (objects, file descriptors, KiB) for each report of the rank."""
    assert finished.returncode == 0, finished.output
    lines = [line.split() for line in finished.output.splitlines() if line.startswith("held ")]
    return [tuple(map(int, line[1:])) for line in lines]


@pytest.mark.parametrize("moment", ["backward", "forward"])
@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_dies_ends_the_others(mode: str, moment: str, tmp_path: Path) -> None:
    *survivors, victim = run_job([PROGRAM, "die", mode, moment], 3, tmp_path, deadline_s=90, uses_torch=True)
    assert victim.returncode not in (0, RAISED), victim.output
    for survivor in survivors:
        assert survivor.returncode == RAISED, survivor.output
        assert "raised PeerLostError" in survivor.output and "rank 2" in survivor.output, survivor.output


def test_denormals_are_kept_where_the_program_flushes_them(tmp_path: Path) -> None:
    for finished in run_job([DENORMALS], 2, tmp_path, uses_torch=True):
        assert finished.returncode == 0, finished.output
        if "cannot flush here" in finished.output:
            pytest.skip("torch.set_flush_denormal does nothing on this processor")
        assert "all is well" in finished.output, finished.output


@pytest.mark.parametrize("mode", ["step", "groups", "sparse", "checked", "asynchronous"])
def test_two_thousand_steps_hold_no_more_than_five_hundred(mode: str, tmp_path: Path) -> None:
    for finished in run_job([PROGRAM, "train", "2000", mode], 2, tmp_path, deadline_s=240, uses_torch=True):
        (objects, descriptors, kib), (objects_later, descriptors_later, kib_later) = held(finished)
        # A leak in 1,500 steps would exceed this many times.
        assert objects_later <= objects + 200, finished.output
        assert descriptors_later <= descriptors, finished.output
        assert kib_later <= kib + 8192, finished.output  # allocators vary a little


def test_a_hundred_jobs_one_after_the_other_hold_no_more_than_twenty_five(tmp_path: Path) -> None:
    for finished in run_job([PROGRAM, "cycles", "100"], 2, tmp_path, deadline_s=240, uses_torch=True):
        (objects, descriptors, kib), (objects_later, descriptors_later, kib_later) = held(finished)
        assert objects_later <= objects + 200, finished.output
        assert descriptors_later <= descriptors, finished.output
        assert kib_later <= kib + 16384, finished.output
