"""The backend byteps of torch.distributed: collectives, training, launchers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.case_jobs import CaseJob, each_case, each_job, jobs_of, outcome_of
from support.job import run_job

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

from frameworks import (  # noqa: E402
    torch_process_group_cases,
    torch_process_group_groups_cases,
    torch_process_group_training_cases,
)
from frameworks.process_group_runs import check_all_well, run_in_store, run_launcher  # noqa: E402

PROGRAM = Path(__file__).parent / "process_group_program.py"


JOBS = jobs_of(
    {
        torch_process_group_cases: [1, 3],
        torch_process_group_groups_cases: [1, 4],
        torch_process_group_training_cases: [4],
    }
)


@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()


# --- launchers and environments that describe the job


def check_launcher(command: list[str]) -> None:
    finished = run_launcher(command)
    assert finished.returncode == 0 and finished.stdout.count("all is well") == 2, finished.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_job_of_the_environment(ranks: int, tmp_path: Path) -> None:
    check_all_well(run_job([PROGRAM, "everything", tmp_path / "store"], ranks, tmp_path, uses_torch=True))


def test_the_job_of_the_store(tmp_path: Path) -> None:
    check_all_well(run_in_store([PROGRAM, "everything"], 2, tmp_path))


def test_torchrun() -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    check_launcher([*torchrun, str(PROGRAM), "everything"])


def test_bpslaunch_with_a_server() -> None:
    bpslaunch = ["-m", "byteps.launcher.launch", "--nproc-per-node", "2", "--servers", "1", "--"]
    check_launcher([*bpslaunch, sys.executable, str(PROGRAM), "everything"])


def test_spawned_processes_meet_at_a_port(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import socket, torch, torch.distributed as dist, torch.multiprocessing as mp, byteps.torch as bps

def rank(rank, url):
    dist.init_process_group(backend="byteps", init_method=url, rank=rank, world_size=2)
    dist.all_reduce(tensor := torch.ones(3))
    assert tensor[0] == 2 and bps.size() == 2 and bps.local_size() == 2 and bps.local_rank() == rank
    dist.destroy_process_group()
    print("all is well", flush=True)

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    mp.spawn(rank, args=(f"tcp://127.0.0.1:{port}",), nprocs=2)
"""
    )
    check_launcher([str(script)])


def test_a_secret_of_the_environment_is_used(tmp_path: Path) -> None:
    """Ranks with different secrets cannot form a job, though they share the store."""
    secrets = {
        rank: {"BYTEPS_SECRET": f"the secret of rank {rank}", "BYTEPS_START_TIMEOUT_S": "5"} for rank in range(2)
    }
    first, second = run_in_store([PROGRAM, "everything"], 2, tmp_path, secrets.__getitem__)
    assert first.returncode == 1 and second.returncode == 1, first.output + second.output
    assert "AuthenticationError" in second.output, second.output


def test_a_program_may_end_without_destroy(tmp_path: Path) -> None:
    check_all_well(run_in_store([PROGRAM, "ends_without_destroy"], 3, tmp_path))
