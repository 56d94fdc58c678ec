"""A group of processes that end together: the first failure stops all, and nothing is left behind."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from .guard import Guard
from .output import Console, Stream
from .topology import Cpus, bound_to
from .wakeup import SignalWakeup

_TAIL_LINES = 20
_GIVE_UP_S = 10.0  # a process that SIGKILL does not end for so long hangs in the kernel

STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to be."""

    label: str  # "r0", "s1"
    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)  # has the secret
    pass_fds: tuple[int, ...] = ()  # given away: closed here once the process has them
    cpus: Cpus | None = None
    is_server: bool = False  # leaves by itself when the workers have left
    copies: Mapping[int, Path] | None = None  # STDOUT, STDERR -> the file to write it to as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that processes are given before they are stopped with more force."""

    to_report: float = 5.0  # after another's failure, to raise and print their own exception
    to_leave: float = 10.0  # servers, after the last worker
    to_stop: float = 5.0  # after SIGTERM or SIGINT


class Child:
    """A started process, which leads a process group of its own."""

    def __init__(self, command: Command, index: int, console: Console) -> None:
        self.command = command
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        with bound_to(command.cpus):
            self._process = subprocess.Popen(
                list(command.argv),
                env=dict(command.env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=command.pass_fds,
            )
        for fd in command.pass_fds:
            os.close(fd)
        self.pid = self._process.pid
        self.streams = [
            self._stream(console, fd, pipe, index)
            for fd, pipe in ((STDOUT, self._process.stdout), (STDERR, self._process.stderr))
            if pipe is not None
        ]

    def _stream(self, console: Console, number: int, pipe: IO[bytes], index: int) -> Stream:
        fd = console.stdout if number == STDOUT else console.stderr
        stream = Stream(pipe, console, fd, console.prefix(fd, self.command.label, index), self.tail)
        if self.command.copies and number in self.command.copies:
            stream.copy = self.command.copies[number].open("wb", buffering=0)
        return stream

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def exit_code(self) -> int:
        """As a shell counts: 128 + the signal that killed it. Only after its end."""
        code = self._process.returncode
        return 128 - code if code < 0 else code

    def how_it_ended(self) -> str:
        code = self._process.returncode
        return f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"

    def has_ended(self) -> bool:
        """True from its end until `reap`: its number cannot be given to another process meanwhile."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap(self) -> None:
        """After its end: ends what it started and left behind, passes on its last output."""
        self.send(signal.SIGKILL)
        for stream in self.streams:
            stream.finish()
        self._process.wait()

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # nobody there who could take it
            os.killpg(self.pid, number)


class ProcessGroup:
    """Runs commands to their common end. One thread: everything happens in `run`."""

    def __init__(self, commands: Sequence[Command], console: Console, patience: Patience = Patience()) -> None:
        self._commands = commands
        self._console = console
        self._patience = patience
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._guilty: Child | None = None
        self._signal: signal.Signals | None = None  # that asked the launcher to stop
        self._is_stopping = False  # from here on, processes fail because of the first failure or of a signal
        self._steps: deque[tuple[float, signal.Signals | None]] = deque()  # when to send what; None: give up

    def run(self) -> int:
        """Returns the job's exit code: 0, that of the first process that failed, or 128 + the signal that stopped it.

        Raises:
            OSError: a command cannot be started, or the console cannot be written to. No process is left then.
        """
        with Guard() as guard, SignalWakeup() as wakeup, self._selector:
            self._selector.register(wakeup.fileno(), selectors.EVENT_READ, None)
            try:
                self._start(guard)
                while any(child.is_running for child in self._children) and not self._gave_up():
                    self._wait(wakeup)
                    self._reap(guard)
            finally:
                for child in self._children:
                    if child.is_running:
                        child.send(signal.SIGKILL)
        self._accuse()
        return self._exit_code()

    def _start(self, guard: Guard) -> None:
        for index, command in enumerate(self._commands):
            child = Child(command, index, self._console)
            guard.protect(child.pid)
            self._children.append(child)
            for stream in child.streams:
                self._selector.register(stream.pipe, selectors.EVENT_READ, stream)

    def _wait(self, wakeup: SignalWakeup) -> None:
        timeout = max(self._steps[0][0] - time.monotonic(), 0) if self._steps else None
        for key, _ in self._selector.select(timeout):
            stream: Stream | None = key.data
            if stream is not None:
                if stream.read() == 0:  # it closed its end
                    self._selector.unregister(stream.pipe)
            else:
                for number in wakeup.read():
                    self._on_signal(number)
        while self._steps and self._steps[0][0] <= time.monotonic() and not self._gave_up():
            _, number_due = self._steps.popleft()
            if number_due is not None:
                self._send_all(number_due)

    def _gave_up(self) -> bool:
        return bool(self._steps) and self._steps[0][1] is None and self._steps[0][0] <= time.monotonic()

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            return
        if self._signal is not None:
            self._console.say(f"{number.name} again: killing the processes")
            self._schedule((0.0, signal.SIGKILL))
            return
        self._signal = number
        self._is_stopping = True
        self._console.say(f"{number.name}: stopping the processes; once more to kill them")
        self._schedule(
            (0.0, number), (self._patience.to_stop, signal.SIGTERM), (self._patience.to_stop, signal.SIGKILL)
        )

    def _schedule(self, *steps: tuple[float, signal.Signals]) -> None:
        """Replaces what was to come. Each step: seconds after the one before, signal."""
        self._steps.clear()
        at = time.monotonic()
        for pause, number in steps:
            at += pause
            self._steps.append((at, number))
        self._steps.append((at + _GIVE_UP_S, None))

    def _send_all(self, number: signal.Signals) -> None:
        self._is_stopping = True
        for child in self._children:
            if child.is_running:
                child.send(number)

    def _reap(self, guard: Guard) -> None:
        ended = [child for child in self._children if child.is_running and child.has_ended()]
        for child in ended:
            for stream in child.streams:
                if stream.pipe in self._selector.get_map():
                    self._selector.unregister(stream.pipe)
            child.reap()
            guard.release(child.pid)
        failed = [child for child in ended if child.exit_code != 0]
        if failed and not self._is_stopping:
            # Of those that ended together, one that was killed did not fail because of the others.
            self._on_failure(max(failed, key=lambda child: child.exit_code > 128))
        elif ended and not self._steps and not any(c.is_running and not c.command.is_server for c in self._children):
            self._schedule((self._patience.to_leave, signal.SIGTERM), (self._patience.to_stop, signal.SIGKILL))

    def _on_failure(self, child: Child) -> None:
        self._guilty = child
        self._is_stopping = True
        if any(other.is_running for other in self._children):
            self._console.say(
                f"{_name(child)} {child.how_it_ended()}; stopping the others in {self._patience.to_report:g} s"
            )
        self._schedule((self._patience.to_report, signal.SIGTERM), (self._patience.to_stop, signal.SIGKILL))

    def _accuse(self) -> None:
        for child in self._children:
            if child.is_running:
                self._console.say(f"{_name(child)} does not end after SIGKILL: it hangs in the kernel")
        if self._guilty is None:
            return
        tail = self._guilty.tail
        self._console.say(
            f"{_name(self._guilty)} {self._guilty.how_it_ended()}; its last lines" + (":" if tail else ": none")
        )
        for line in tail:
            self._console.write_line(self._console.stderr, b"    " + line)

    def _exit_code(self) -> int:
        if self._guilty is not None:
            return self._guilty.exit_code
        return 128 + self._signal if self._signal is not None else 0


def _name(child: Child) -> str:
    return f"{child.command.label} (host {socket.gethostname()}, pid {child.pid})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
