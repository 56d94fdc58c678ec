"""`import torch` registers the backend byteps, for all launchers and Hugging Face's libraries."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.job import Job, Process, start

pytest.importorskip("torch")

from frameworks.process_group_runs import DEADLINE_S, check_all_well, run_launcher, without_job

pytestmark = pytest.mark.timeout(200)

PROGRAM = Path(__file__).with_name("torch_plugin_program.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def test_torchrun() -> None:
    finished = run_launcher([*TORCHRUN, str(PROGRAM), "process_group"])
    assert finished.returncode == 0 and finished.stdout.count("all is well") == 4, finished.stdout


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_mpirun() -> None:
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, PROGRAM, "process_group"]
    finished = subprocess.run(
        mpirun,
        env=without_job(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert finished.returncode == 0 and finished.stdout.count("all is well") == 4, finished.stdout + finished.stderr


def test_srun(tmp_path: Path) -> None:
    """Sets Slurm's variables; Slurm itself is not installed."""
    step = {
        "SLURM_JOB_ID": str(secrets.randbelow(10**9)),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
    }
    processes: list[Process] = []
    try:
        for rank in range(2):
            env = without_job() | step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
            processes.append(start([PROGRAM, "process_group"], env, tmp_path, rank, uses_torch=True))
        check_all_well(Job(processes, tmp_path).wait(DEADLINE_S))
    finally:
        Job(processes, tmp_path).kill()


def test_without_any_launcher_pytorch_says_what_is_missing() -> None:
    program = "import torch.distributed as dist; dist.init_process_group('byteps')"
    finished = run_launcher(["-c", program])
    assert "environment variable RANK expected" in finished.stdout, finished.stdout


@pytest.mark.parametrize("device", ["cpu", "best"])
def test_hugging_face(device: str) -> None:
    """On the CPU by `use_cpu`, and because there is no other device."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import torch

    if device == "best" and torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator, for which Accelerate makes process groups of other backends too")
    finished = run_launcher([*TORCHRUN, str(PROGRAM), "hugging_face", device], 120)
    assert finished.returncode == 0 and finished.stdout.count("all is well") == 2, finished.stdout


def test_a_broken_installation_does_not_break_pytorch() -> None:
    """If the native module is missing, only programs that use the backend get an error."""
    program = """
import sys
sys.modules["byteps._core"] = None
import torch.distributed as dist
assert dist.is_backend_available("byteps")
print("imported", flush=True)
dist.init_process_group("byteps", store=dist.HashStore(), rank=0, world_size=1)
"""
    finished = run_launcher(["-c", program])
    assert finished.returncode == 1 and "imported" in finished.stdout, finished.stdout
    assert "_core" in finished.stdout.splitlines()[-1], finished.stdout
