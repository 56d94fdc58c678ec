"""Jobs whose scheduler, servers and workers a test starts, stops and kills one by one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.job import Process, job_environment
from support.processes import thread_states
from support.torch_process import Forkserver, TorchProcess

RANK_PROGRAM = Path(__file__).with_name("rank_program.py")
RAISED = 3  # exit code of a rank program whose plan ended with an exception of byteps
PATIENCE_S = 60.0  # time limit of short operations on a busy machine


@dataclass(frozen=True)
class Raised:
    """An exception that ended a rank's plan."""

    at_s: float  # time.monotonic(), which all processes of a machine share
    kind: str
    message: str


class Member:
    """A process of a job: "rank 1", "server 0" or "scheduler"."""

    def __init__(
        self,
        name: str,
        command: list[str | Path],
        env: Mapping[str, str],
        folder: Path,
        forkserver: Forkserver | None = None,
    ) -> None:
        self.name = name
        self._log = folder / f"{name.replace(' ', '')}.log"
        self.process: Process
        with self._log.open("wb") as log:
            if forkserver is None:
                self.process = subprocess.Popen(
                    command, env=dict(env), cwd=folder, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
                )
            else:
                self.process = TorchProcess(
                    command[1:], env, log.fileno(), folder=folder, has_stdin=True, forkserver=forkserver
                )
        self.pid = self.process.pid

    @property
    def output(self) -> str:
        """The output so far."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Stops the process like Ctrl-Z: its connections stay open.

        Returns when all its threads stand, which can take a moment.
        """
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        """Continues after stop()."""
        self.process.send_signal(signal.SIGCONT)

    def resume_plan(self) -> None:
        """Ends the `pause` of a rank program."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()

    def let_go(self) -> None:
        """Ends the `linger` of a rank program."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait_for(self, text: str, count: int = 1) -> None:
        """Waits until the output contains `text` this number of times."""
        wait_until(lambda: self.output.count(text) >= count or self.process.poll() is not None, self.describe)
        assert self.output.count(text) >= count, self.describe()

    def end(self, deadline_s: float = PATIENCE_S) -> int:
        """Waits until it ends by itself; its exit code, negative if a signal killed it."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            threads = thread_states(self.pid)
            raise AssertionError(
                f"after {deadline_s:.1f} s still running: {self.describe()}\nits threads:\n{threads}"
            ) from None

    def raised(self) -> Raised:
        """Returns the exception that ended the plan. Valid after the end."""
        lines = [line for line in self.output.splitlines() if line.startswith("raised ")]
        assert len(lines) == 1, self.describe()
        _, at_s, kind, message = lines[0].split(" ", 3)
        return Raised(float(at_s), kind, message)

    def check_raised(self, kind: str, *parts: str, deadline_s: float = PATIENCE_S) -> None:
        """Checks that the plan ended by such an exception, whose message contains `parts`."""
        assert self.end(deadline_s) == RAISED, self.describe()
        raised = self.raised()
        assert raised.kind == kind and all(part in raised.message for part in parts), self.describe()

    def describe(self) -> str:
        return f"{self.name} (pid {self.pid}, exit code {self.process.poll()}):\n{self.output[-2000:]}"


class Cluster:
    """The processes of one job on this machine. Leaving its context kills what is left of them."""

    def __init__(
        self,
        folder: Path,
        workers: int,
        servers: int = 0,
        *,
        hosted: bool = False,
        env: Mapping[str, str] | None = None,
        forkserver: Forkserver | None = None,
    ) -> None:
        """A job without processes.

        Args:
            folder: for the outputs, and where the processes run.
            workers: one "machine" each, so that servers and scheduler are needed.
            servers: processes.
            hosted: rank 0 is the scheduler too; else it is a process of its own.
            env: added to the environment of all.
            forkserver: starts all processes, each a TorchProcess.
        """
        self.members: dict[str, Member] = {}
        self._folder = folder
        self._forkserver = forkserver
        # Bound and not listening: the system gives this port to nobody else, at no address of this
        # machine, and the scheduler can listen there.
        self._port_holder = socket.socket()
        self._port_holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port_holder.bind(("", 0))
        self.port = self._port_holder.getsockname()[1]
        self.hosted = hosted
        topology = {
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "BYTEPS_HOST_SCHEDULER": str(int(hosted)),
        }
        self.env = job_environment(self.port, 1) | topology | dict(env or {})

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._port_holder.close()
        for member in self.members.values():
            member.kill()

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def start_rank(
        self,
        rank: int,
        *plan: str,
        env: Mapping[str, str] | None = None,
        program: Path = RANK_PROGRAM,
        before: Sequence[str | Path] = (),
        uses_torch: bool = False,
    ) -> Member:
        """Starts `program` with `plan`.

        Args:
            rank: its number.
            plan: arguments of the program.
            env: added to the job's.
            program: a script.
            before: a command that runs the command behind it and keeps the pid.
            uses_torch: start it as TorchProcess, unless there is a `before`.
        """
        own = {"DMLC_WORKER_ID": str(rank), "BYTEPS_LOCAL_RANK": "0"}
        forkserver = Forkserver(rank % 2) if uses_torch else None
        return self._start(f"rank {rank}", [program, *plan], own | dict(env or {}), before, forkserver)

    def start_server(self, number: int = 0) -> Member:
        return self._start(f"server {number}", ["-m", "byteps.server"], {"DMLC_ROLE": "server"})

    def start_scheduler(self) -> Member:
        return self._start("scheduler", ["-m", "byteps.server"], {"DMLC_ROLE": "scheduler"})

    def others(self, victim: str) -> Iterator[Member]:
        return (member for name, member in self.members.items() if name != victim)

    def describe(self) -> str:
        return "\n".join(member.describe() for member in self.members.values())

    def _start(
        self,
        name: str,
        arguments: list[str | Path],
        own: Mapping[str, str],
        before: Sequence[str | Path] = (),
        forkserver: Forkserver | None = None,
    ) -> Member:
        command = [*before, sys.executable, *arguments]
        forkserver = None if before else forkserver or self._forkserver
        self.members[name] = Member(name, command, self.env | own, self._folder, forkserver)
        return self.members[name]


def wait_until(
    condition: Callable[[], bool], describe: Callable[[], str] = str, deadline_s: float = PATIENCE_S
) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:.0f} s in vain: {describe()}"
        time.sleep(0.02)
