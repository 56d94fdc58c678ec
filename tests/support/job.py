"""Real jobs for tests: N worker processes on this machine, with a hard deadline."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.torch_process import Forkserver, TorchProcess

ROOT = Path(__file__).resolve().parents[2]
_LAUNCHERS = ("BYTEPS_", "DMLC_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")


Process = subprocess.Popen[bytes] | TorchProcess


@dataclass(frozen=True)
class Finished:
    """A process that has ended."""

    rank: int
    returncode: int  # negative: killed by that signal
    output: str  # stdout and stderr


class Job:
    """The processes of one job. Their output goes to files in `folder`."""

    def __init__(self, processes: Sequence[Process], folder: Path) -> None:
        self.processes = processes
        self._folder = folder

    def wait(self, deadline_s: float) -> list[Finished]:
        """Waits for all processes. Fails the test if one runs longer than `deadline_s`."""
        end = time.monotonic() + deadline_s
        for rank, process in enumerate(self.processes):
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                outputs = "\n".join(f"--- rank {r}:\n{self.output(r)}" for r in range(len(self.processes)))
                raise AssertionError(f"rank {rank} still runs after {deadline_s} s\n{outputs}") from None
        return [Finished(rank, p.wait(), self.output(rank)) for rank, p in enumerate(self.processes)]

    def output(self, rank: int) -> str:
        """Returns the output of the rank so far."""
        return output_path(self._folder, rank).read_text(errors="replace")

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def job(
    command: Sequence[str | Path],
    ranks: int,
    folder: Path,
    env: Mapping[str, str] | None = None,
    *,
    uses_torch: bool = False,
    python: str | Path = sys.executable,
) -> Iterator[Job]:
    """Starts `python *command` once for each rank; kills what is left of it on the way out.

    Args:
        command: arguments of the Python interpreter.
        ranks: how many; with 1, byteps needs no other process.
        folder: for the outputs.
        env: added to the environment, which holds no settings but those of this job.
        uses_torch: start the ranks as TorchProcess.
        python: the interpreter; of no effect with `uses_torch`.
    """
    listener = socket.create_server(("127.0.0.1", 0))  # nobody else can take the port
    shared = job_environment(listener.getsockname()[1], ranks) | dict(env or {})
    processes: list[Process] = []
    try:
        for rank in range(ranks):
            own = {"BYTEPS_LOCAL_RANK": str(rank)}
            if rank == 0 and ranks > 1:
                own["BYTEPS_SCHEDULER_FD"] = str(listener.fileno())
            files = [listener.fileno()] if rank == 0 else []
            processes.append(start(command, shared | own, folder, rank, files, uses_torch=uses_torch, python=python))
        listener.close()
        yield Job(processes, folder)
    finally:
        listener.close()
        Job(processes, folder).kill()


def run_job(
    command: Sequence[str | Path],
    ranks: int,
    folder: Path,
    env: Mapping[str, str] | None = None,
    deadline_s: float = 60,
    *,
    uses_torch: bool = False,
    python: str | Path = sys.executable,
) -> list[Finished]:
    """`job`, until all its processes have ended."""
    with job(command, ranks, folder, env, uses_torch=uses_torch, python=python) as running:
        return running.wait(deadline_s)


def start(
    command: Sequence[str | Path],
    env: Mapping[str, str],
    folder: Path,
    rank: int,
    files: Sequence[int] = (),
    *,
    uses_torch: bool,
    python: str | Path = sys.executable,
) -> Process:
    """Starts a process with output to the rank's file in `folder`, which inherits `files`."""
    with output_path(folder, rank).open("wb") as output:
        if uses_torch:
            return TorchProcess(command, env, output.fileno(), files=files, forkserver=Forkserver(rank % 2))
        return subprocess.Popen(
            [python, *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=files,
        )


def job_environment(port: int, ranks: int) -> dict[str, str]:
    """Returns the common environment of the processes of a job on one machine."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    paths = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return inherited | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "BYTEPS_JOB_ID": f"test-{secrets.token_hex(8)}",
        "BYTEPS_SECRET": secrets.token_hex(16),
        "BYTEPS_LOCAL_SIZE": str(ranks),
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "BYTEPS_START_TIMEOUT_S": "30",
        "BYTEPS_OP_TIMEOUT_S": "60",
        "BYTEPS_TIMEOUT_S": "10",
    }


def output_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.log"
