"""suspend and resume with other ranks, in all frameworks: resume_program.py."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from frameworks.resume_program import JOBS
from support.installed import skip_unless_installed
from support.job import Job, job_environment, start

PROGRAM = Path(__file__).with_name("resume_program.py")
MXNET = Path(sys.prefix, "mxnet", "bin", "python")
FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "keras", "mxnet": ""}

pytestmark = pytest.mark.timeout(260)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_training_goes_on_with_more_ranks_and_with_fewer(framework: str, tmp_path: Path) -> None:
    python = MXNET if framework == "mxnet" else Path(sys.executable)
    if not python.exists():
        pytest.skip(f"{MXNET} is missing: tools/bootstrap.sh test-all makes it")
    skip_unless_installed(*filter(None, [FRAMEWORKS[framework]]))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    os.mkfifo(tmp_path / "gate2")
    shared = job_environment(port, 1)
    processes = []
    try:
        for rank in range(max(JOBS)):
            own = {
                "DMLC_NUM_WORKER": str(rank + 1),
                "DMLC_WORKER_ID": str(rank),
                "BYTEPS_LOCAL_RANK": "0",
                "BYTEPS_LOCAL_SIZE": "1",
                "BYTEPS_GLOBAL_RANK": str(rank),
                "BYTEPS_HOST_SCHEDULER": "1",
                "BYTEPS_START_TIMEOUT_S": "60",  # the others import a framework, and train
                "TF_CPP_MIN_LOG_LEVEL": "2",
            }
            processes.append(
                start(
                    [PROGRAM, str(rank), framework, tmp_path],
                    shared | own,
                    tmp_path,
                    rank,
                    uses_torch=framework == "torch",
                    python=python,
                )
            )
        finished = Job(processes, tmp_path).wait(deadline_s=200)
    finally:
        Job(processes, tmp_path).kill()
    for each, jobs in zip(finished, ([0, 1, 2, 3], [1, 2], [2]), strict=True):
        assert each.returncode == 0, f"rank {each.rank}: {each.output}"
        assert [line for line in each.output.splitlines() if "is done" in line] == [
            f"job {job} is done" for job in jobs
        ]
