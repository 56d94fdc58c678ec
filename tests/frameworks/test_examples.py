"""The examples run on one rank and on several, and train the same there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.job import ROOT, run_job

pytest.importorskip("torch")
EXAMPLES = ROOT / "examples" / "torch"

# Of fashion_mnist.py: with what else.
MODES = {
    "optimizer": ("--bucket-kib", "64"),
    "ddp": (),
    "torch-ddp": (),
    "torch-ddp-hook": (),
    "cross-barrier": (),
    "async": ("--staleness", "2"),
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_minimal(tmp_path: Path, ranks: int) -> None:
    finished = run_job([EXAMPLES / "minimal.py"], ranks, tmp_path, deadline_s=100)
    weights = []
    for process in finished:
        assert process.returncode == 0, process.output
        assert f"rank {process.rank} of {ranks}" in process.output
        weights += re.findall(r"sum of weights (\S+)", process.output)
    assert len(weights) == ranks and len(set(weights)) == 1


def torchrun(ranks: int, *command: object) -> str:
    """Runs the program, which must succeed, and returns its output."""
    finished = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def accuracy_of_one_rank() -> float:
    pytest.importorskip("sklearn")
    return accuracy(train_on_digits(1, "optimizer"))


def train_on_digits(ranks: int, mode: str, *options: str) -> str:
    return torchrun(ranks, EXAMPLES / "fashion_mnist.py", "--digits", "--epochs", "4", "--mode", mode, *options)


def accuracy(output: str) -> float:
    (found,) = re.findall(r"test accuracy (\S+),", output)  # only rank 0 prints them
    return float(found)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_images_are_learned_the_same_in_every_mode(accuracy_of_one_rank: float, mode: str) -> None:
    output = train_on_digits(2, mode, *MODES[mode])
    assert "all ranks have the same parameters" in output
    assert len(re.findall(r"(?m)^ +\d+ .* [0-9a-f]{64}$", output)) == 2
    assert accuracy_of_one_rank > 0.6
    assert accuracy(output) == pytest.approx(accuracy_of_one_rank, abs=0.1 if mode == "async" else 0.01)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", ["gpt2_trainer.py", "gpt2_accelerate.py", "gpt2_lightning.py"])
def test_gpt2_trains_the_same_on_any_number_of_ranks(program: str) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    pytest.importorskip("lightning")
    bits = []
    for ranks in (1, 2):
        output = torchrun(ranks, EXAMPLES / program, "--steps", "30", "--layers", "2", "--width", "64")
        found = re.search(rf"{ranks} ranks, backend byteps: (\S+) bits a byte", output)
        assert found, output
        bits.append(float(found[1]))
    assert bits[1] < 7.0  # 8 before the first step
    assert bits[1] == pytest.approx(bits[0], abs=0.1)
