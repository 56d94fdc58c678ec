"""The examples run on one rank and on several, and train the same there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.job import ROOT, run_job

pytest.importorskip("torch")
EXAMPLES = ROOT / "examples" / "torch"


@pytest.mark.parametrize("ranks", [1, 2])
def test_minimal(tmp_path: Path, ranks: int) -> None:
    finished = run_job([EXAMPLES / "minimal.py"], ranks, tmp_path, deadline_s=100)
    weights = []
    for process in finished:
        assert process.returncode == 0, process.output
        assert f"rank {process.rank} of {ranks}" in process.output
        weights += re.findall(r"sum of weights (\S+)", process.output)
    assert len(weights) == ranks and len(set(weights)) == 1


@pytest.mark.timeout(250)
def test_fashion_mnist_trains_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    accuracies = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        command = [EXAMPLES / "fashion_mnist.py", "--digits", "--epochs", "4"]
        finished = run_job(command, ranks, folder, deadline_s=120)
        for process in finished:
            assert process.returncode == 0, process.output
        output = finished[0].output
        assert "all ranks have the same parameters" in output
        assert len(re.findall(r"(?m)^ +\d+ .* [0-9a-f]{64}$", output)) == ranks
        accuracies += map(float, re.findall(r"test accuracy (\S+),", output))
        assert all("test accuracy" not in process.output for process in finished[1:])
    assert accuracies[0] > 0.6
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.01)
