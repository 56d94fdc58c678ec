"""Tensors in the memory of a GPU, which is played (tests/played_cuda/): whole jobs, through Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.job import ROOT, run_job
from support.played_device import build

PROGRAM = Path(__file__).with_name("device_rank.py")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("played_cuda"))


def run(case: str, driver: Path, folder: Path, ranks: int = 2, **env: str) -> list[str]:
    settings = {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": str(ROOT / "tests"), "PLAYED_CUDA_SEED": "3"}
    finished = run_job([PROGRAM, case], ranks, folder, settings | env)
    for process in finished:
        assert process.returncode == 0, process
    return [process.output for process in finished]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sums_are_right_and_ordered_among_the_work_of_streams(ranks: int, driver: Path, tmp_path: Path) -> None:
    outputs = run("sums", driver, tmp_path, ranks)
    assert ranks == 1 or all("unpinned 0" in output and "staged 0" not in output for output in outputs), outputs


def test_the_same_through_plain_memory_and_tcp(driver: Path, tmp_path: Path) -> None:
    outputs = run("sums", driver, tmp_path, 2, BYTEPS_PINNED_BYTES="0", BYTEPS_SHM="0")
    assert all("unpinned 0" not in output for output in outputs), outputs


@pytest.mark.parametrize("case", ["released", "forked"])
def test_tensors_are_let_go_and_children_never_call_cuda(case: str, driver: Path, tmp_path: Path) -> None:
    run(case, driver, tmp_path)


def test_a_lost_device_is_an_error_on_all_ranks(driver: Path, tmp_path: Path) -> None:
    for output in run("lost", driver, tmp_path):
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in output


def test_doctor_shows_the_gpus(driver: Path) -> None:
    command = [sys.executable, "-m", "byteps", "doctor", "--json"]
    env = os.environ | {"LD_LIBRARY_PATH": str(driver)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    found = {each["topic"]: each["text"] for each in json.loads(done.stdout)}
    assert found["GPU 0"].startswith("Played GPU, PCI 0000:01:00.0"), found
    assert found["GPU 1"].startswith("Played GPU, PCI 0000:02:00.0"), found
