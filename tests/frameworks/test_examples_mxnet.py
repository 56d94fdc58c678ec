"""The examples of MXNet run on one rank and on several, and train the same there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.job import ROOT, run_job

EXAMPLES = ROOT / "examples" / "mxnet"
MXNET = Path(sys.prefix, "mxnet", "bin", "python")  # an environment of its own (tools/bootstrap.sh)

if not MXNET.exists():
    pytest.skip(f"{MXNET} is missing: tools/bootstrap.sh test-all makes it", allow_module_level=True)


def on_digits(program: str, ranks: int, folder: Path) -> str:
    """Returns the output of rank 0."""
    folder.mkdir(exist_ok=True)
    finished = run_job([EXAMPLES / program, "--digits", "--epochs", "4"], ranks, folder, deadline_s=100, python=MXNET)
    for process in finished:
        assert process.returncode == 0, process.output
    return finished[0].output


def accuracy(output: str) -> float:
    (found,) = re.findall(r"test accuracy (\S+),", output)
    return float(found)


@pytest.mark.timeout(250)
@pytest.mark.parametrize("program", ["gluon_cnn.py", "module_fit.py"])
def test_images_are_learned_the_same_on_any_number_of_ranks(program: str, tmp_path: Path) -> None:
    alone, together = (on_digits(program, ranks, tmp_path / str(ranks)) for ranks in (1, 2))
    assert "2 ranks train on the digits of scikit-learn" in together
    assert "all ranks have the same parameters" in together
    assert len(re.findall(r"(?m)^ +\d+ .* [0-9a-f]{64}$", together)) == 2
    assert accuracy(alone) > 0.7
    assert accuracy(together) == pytest.approx(accuracy(alone), abs=0.01)
