"""The examples of Keras and TensorFlow run on one rank and on several, and train the same there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.installed import skip_unless_installed
from support.job import ROOT, run_job

skip_unless_installed("tensorflow", "sklearn")


def on_digits(framework: str, ranks: int, folder: Path, *options: str, backend: str = "tensorflow") -> str:
    """Returns the output of rank 0."""
    folder.mkdir(exist_ok=True)
    command = [ROOT / "examples" / framework / "fashion_mnist.py", "--digits", "--epochs", "4", *options]
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": backend}
    finished = run_job(command, ranks, folder, env, deadline_s=200)
    for process in finished:
        assert process.returncode == 0, process.output
    return finished[0].output


def accuracy(output: str) -> float:
    (found,) = re.findall(r"test accuracy (\S+),", output)
    return float(found)


def check_two_ranks(output: str) -> None:
    assert "2 ranks train on the digits of scikit-learn" in output
    assert "all ranks have the same parameters" in output
    assert len(re.findall(r"(?m)^ +\d+ .* [0-9a-f]{64}$", output)) == 2


@pytest.mark.timeout(450)
def test_keras_learns_images_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    alone, together = (on_digits("keras", ranks, tmp_path / str(ranks)) for ranks in (1, 2))
    check_two_ranks(together)
    assert accuracy(alone) > 0.7
    assert accuracy(together) == pytest.approx(accuracy(alone), abs=0.02)


@pytest.mark.timeout(450)
def test_a_loop_of_ones_own_learns_images_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    alone, together = (on_digits("tensorflow", ranks, tmp_path / str(ranks)) for ranks in (1, 2))
    check_two_ranks(together)
    assert accuracy(alone) > 0.6
    assert accuracy(together) == pytest.approx(accuracy(alone), abs=0.01)


@pytest.mark.timeout(300)
def test_keras_on_torch_learns_images_with_a_warmup(tmp_path: Path) -> None:
    skip_unless_installed("torch")
    output = on_digits("keras", 2, tmp_path, "--warmup-epochs", "2", backend="torch")
    assert "all ranks have the same parameters" in output and "finished gradual learning rate warmup" in output
    assert accuracy(output) > 0.7
