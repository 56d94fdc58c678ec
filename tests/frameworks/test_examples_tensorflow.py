"""The examples of Keras and TensorFlow run on one rank and on several, and train the same there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.job import ROOT, run_job

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")


def keras_on_digits(ranks: int, folder: Path, *options: str, backend: str = "tensorflow") -> str:
    """What rank 0 says."""
    command = [ROOT / "examples" / "keras" / "fashion_mnist.py", "--digits", "--epochs", "4", *options]
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": backend}
    finished = run_job(command, ranks, folder, env, deadline_s=200)
    for process in finished:
        assert process.returncode == 0, process.output
    return finished[0].output


def accuracy(output: str) -> float:
    (found,) = re.findall(r"test accuracy (\S+),", output)
    return float(found)


@pytest.mark.timeout(450)
def test_keras_learns_images_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    outputs = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        outputs.append(keras_on_digits(ranks, folder))
    assert "2 ranks train on the digits of scikit-learn" in outputs[1]
    assert "all ranks have the same parameters" in outputs[1]
    assert len(re.findall(r"(?m)^ +\d+ .* [0-9a-f]{64}$", outputs[1])) == 2
    assert accuracy(outputs[0]) > 0.7
    assert accuracy(outputs[1]) == pytest.approx(accuracy(outputs[0]), abs=0.02)


@pytest.mark.timeout(300)
def test_keras_on_torch_learns_images_with_a_warmup(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = keras_on_digits(2, tmp_path, "--warmup-epochs", "2", backend="torch")
    assert "all ranks have the same parameters" in output and "finished gradual learning rate warmup" in output
    assert accuracy(output) > 0.7
