"""A process that bpslaunch starts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from byteps.config import STARTED
from byteps.errors import InvalidArgumentError

from .output import Console, Stream
from .report import Report, read_report
from .topology import Cpus, bound_to

STDOUT, STDERR = 1, 2
OVER = b"over\n"  # on the standard input of a bpslaunch: the job is over
_KILLED = 128  # exit codes above are those of processes that a signal has killed
Copies = dict[int, IO[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command of a process."""

    label: str  # "r0", "s1"
    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)  # contains the secret
    pass_fds: tuple[int, ...] = ()  # closed in the launcher once the process has them
    cpus: Cpus | None = None
    is_server: bool = False  # ends by itself when the workers have left
    may_be_lost: bool = False  # the job goes on without it, once it has started (BYTEPS_FAILOVER)
    is_elastic: bool = False  # a worker of an elastic job, which goes on without it
    may_restart: bool = True  # another process may take the place of a lost one
    judges: bool = False  # the coordinator of an elastic job: if it fails, the job has failed, unless it was killed
    restarts: int = 0  # of the process, before this one
    copies: Mapping[int, Path] = field(default_factory=dict)  # STDOUT, STDERR -> log file
    # Standard input, which stays open until the process is to end; None: it has none.
    stdin: bytes | None = field(default=None, repr=False)

    def again(self) -> Command:
        """Returns the command of a process that takes the place of this one, which was lost."""
        env = dict(self.env)
        if path := env.get("BYTEPS_ERROR_FILE"):
            base = path.removesuffix(f".{self.restarts}") if self.restarts else path
            env["BYTEPS_ERROR_FILE"] = f"{base}.{self.restarts + 1}"
        return replace(self, env=env, restarts=self.restarts + 1)

    def open_copies(self) -> Copies:
        """Opens the log files, at their end if this is a restart.

        Raises:
            InvalidArgumentError: a file cannot be written.
        """
        opened: Copies = {}
        for number, path in self.copies.items():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                opened[number] = path.open("ab" if self.restarts else "wb", buffering=0)
            except OSError as error:
                for file in opened.values():
                    file.close()
                raise InvalidArgumentError(
                    f"--log-dir: cannot write {path}: {error.strerror}: expected a folder that this user can write to"
                ) from error
        return opened


class Child:
    """A started process, which leads its own session."""

    def __init__(
        self,
        command: Command,
        index: int,
        console: Console,
        copies: Copies | None = None,
        in_child: Callable[[], None] | None = None,
    ) -> None:
        """Starts the process.

        `in_child` runs in it before its program; `copies` are those of `command`.
        """
        self.command = command
        self.index = index
        self.last_line: list[bytes] = []
        self.was_told_to_end = False  # by a signal from the launcher
        self.ended_at = 0.0
        self.report: Report | None = None  # its own report about its end
        self.is_lost = False  # it has failed, and the job may go on without it
        self.remark = ""  # the launcher's remark about its end
        with bound_to(command.cpus):
            self._process = subprocess.Popen(
                list(command.argv),
                env=dict(command.env),
                stdin=subprocess.DEVNULL if command.stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=command.pass_fds,
                preexec_fn=in_child,  # noqa: PLW1509  (the launcher has one thread)
            )
        for fd in command.pass_fds:
            os.close(fd)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(command.stdin or b"")
        self.pid = self._process.pid
        self.streams = [
            self._stream(console, fd, pipe, index, (copies or {}).get(fd))
            for fd, pipe in ((STDOUT, self._process.stdout), (STDERR, self._process.stderr))
            if pipe is not None
        ]

    def _stream(self, console: Console, number: int, pipe: IO[bytes], index: int, copy: IO[bytes] | None) -> Stream:
        fd = console.stdout if number == STDOUT else console.stderr
        stream = Stream(pipe, console, fd, console.prefix(fd, self.command.label, index), self._note_line)
        stream.copy = copy
        return stream

    def _note_line(self, line: bytes) -> None:
        if line.strip():
            self.last_line = [line]

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def exit_code(self) -> int:
        """The exit code as in a shell: 128 + signal for a killed process. Valid after its end."""
        code = self._process.returncode
        if code < 0 and self.was_told_to_end and self.report is not None:
            return 1  # it has reported an exception, and was killed before it ended by it
        return 128 - code if code < 0 else code

    def how_it_ended(self) -> str:
        code = self._process.returncode
        if code < 0 and self.was_told_to_end and self.report is not None:
            return "was stopped before it ended"
        return f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"

    def has_ended(self) -> bool:
        """Whether the process has ended. Its pid is not reused before `reap`."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap(self, now: float) -> None:
        """Kills remaining children of the ended process, and passes on its last output.

        `now`: time.time().
        """
        self._signal(signal.SIGKILL)
        self._close_stdin()
        for stream in self.streams:
            stream.finish()
        self._process.wait()
        self.ended_at = now
        path = self.command.env.get("BYTEPS_ERROR_FILE")
        self.report = read_report(Path(path)) if path else None
        # A server that was started again may also come too late.
        has_started = self.command.restarts > 0 or self.has_started()
        may_be_lost = self.command.is_elastic or (self.command.may_be_lost and has_started)
        has_judged = self.command.judges and self.exit_code < _KILLED
        self.is_lost = may_be_lost and self.exit_code != 0 and not has_judged

    def has_started(self) -> bool:
        """Whether it takes part in the job, or has done so."""
        path = self.command.env.get("BYTEPS_ERROR_FILE")
        return path is not None and Path(path + STARTED).exists()

    def say_over(self) -> None:
        """The job is over: what has not started must not wait for it."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with suppress(BrokenPipeError):
                stdin.write(OVER)
        elif self.command.is_elastic and not self.has_started():
            self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal.

        A process with standard input is told to end by its end: a signal would only reach ssh, and
        break the connection to what has to end.
        """
        self.was_told_to_end = True
        self._close_stdin()
        if self.command.stdin is None or number == signal.SIGKILL:
            self._signal(number)

    def _close_stdin(self) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # the session has no process
            os.killpg(self.pid, number)

    def is_stopped(self) -> bool:
        """Whether a process of its session is stopped (SIGSTOP, Ctrl-Z, a debugger)."""
        return any(_is_stopped_in(path, self.pid) for path in Path("/proc").glob("[0-9]*/stat"))


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_stopped_in(stat: Path, session: int) -> bool:
    try:
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # it has ended
        return False
    return int(fields[3]) == session and fields[0] in "Tt"
