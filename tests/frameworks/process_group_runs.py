"""Runs programs whose ranks are started by a launcher, or know only a store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from support.job import Finished, Job, Process, job_environment, start

DEADLINE_S = 60


def without_job() -> dict[str, str]:
    """Returns an environment that describes no job."""
    kept = {name: value for name, value in job_environment(0, 1).items() if not name.startswith(("BYTEPS_", "DMLC_"))}
    return kept | {"BYTEPS_START_TIMEOUT_S": "30", "BYTEPS_TIMEOUT_S": "10"}


def run_in_store(
    command: Sequence[str | Path],
    ranks: int,
    folder: Path,
    env_of: Callable[[int], dict[str, str]] = lambda _: {},
    deadline_s: float = DEADLINE_S,
) -> list[Finished]:
    """Starts ranks that share only a file, the last argument of `python *command FILE`."""
    processes: list[Process] = []
    try:
        for rank in range(ranks):
            env = without_job() | {"RANK": str(rank), "WORLD_SIZE": str(ranks)} | env_of(rank)
            processes.append(start([*command, folder / "store"], env, folder, rank, uses_torch=True))
        return Job(processes, folder).wait(deadline_s)
    finally:
        Job(processes, folder).kill()


def run_launcher(command: Sequence[str], deadline_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    """Runs `python *command`, which starts its ranks itself, in an environment without a job."""
    return subprocess.run(
        [sys.executable, *command],
        env=without_job(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=deadline_s,
        check=False,
    )


def check_all_well(finished: list[Finished]) -> None:
    for process in finished:
        assert process.returncode == 0 and "all is well" in process.output, process.output
