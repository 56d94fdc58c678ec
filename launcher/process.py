"""A group of processes that end together: the first failure stops all, and nothing is left behind."""

from __future__ import annotations

import selectors
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from byteps.errors import InvalidArgumentError

from .child import STDERR, STDOUT, Child, Command, Copies
from .guard import Guard
from .output import Console, Stream
from .verdict import first_failure, name_of, verdict
from .wakeup import SignalWakeup

__all__ = ["STDERR", "STDOUT", "Command", "Patience", "ProcessGroup"]

_GIVE_UP_S = 10.0  # a process that SIGKILL does not end for so long hangs in the kernel
_LOOKS_PER_TIMEOUT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that processes are given before they are stopped with more force."""

    to_report: float = 5.0  # after another's failure, to raise and print their own exception
    to_leave: float = 10.0  # servers, after the last worker
    to_interrupt: float = 5.0  # after SIGINT, before SIGTERM
    to_stop: float = 30.0  # after SIGTERM, before SIGKILL
    of_stopped: float = 30.0  # who is stopped when others have ended, before SIGKILL


class ProcessGroup:
    """Runs commands to their common end. One thread: everything happens in `run`."""

    def __init__(
        self,
        commands: Sequence[Command],
        console: Console,
        patience: Patience = Patience(),
        folder: Path | None = None,
    ) -> None:
        """`folder` is removed at the end, whatever ends the launcher."""
        self._commands = commands
        self._console = console
        self._patience = patience
        self._folder = folder
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._has_failed = False
        self._signal: signal.Signals | None = None  # that asked the launcher to stop
        self._is_stopping = False  # from here on, processes fail because of the first failure or of a signal
        self._steps: deque[tuple[float, signal.Signals | None]] = deque()  # when to send what; None: give up
        self._stopped_since: dict[Child, float] = {}  # looked at since the first worker has ended

    def run(self) -> int:
        """Returns the job's exit code: 0, that of the process that failed first, or 128 + the signal that stopped it.

        Raises:
            InvalidArgumentError: the output cannot be copied to where it is wanted. No process was started.
            OSError: a command cannot be started, or the console cannot be written to. No process is left then.
        """
        with Guard(self._folder) as guard, SignalWakeup() as wakeup, self._selector:
            self._selector.register(wakeup.fileno(), selectors.EVENT_READ, None)
            copies = self._open_copies()
            try:
                self._start(guard, copies)
                while any(child.is_running for child in self._children) and not self._gave_up():
                    self._wait(wakeup)
                    self._reap(guard)
            finally:
                for child in self._children:
                    if child.is_running:
                        child.send(signal.SIGKILL)
                for files in copies:
                    for file in files.values():
                        file.close()
        return self._judge()

    def _open_copies(self) -> list[Copies]:
        """Before any process starts, so that none is left if that fails."""
        opened: list[Copies] = []
        try:
            for command in self._commands:
                opened.append(command.open_copies())
        except InvalidArgumentError:
            for files in opened:
                for file in files.values():
                    file.close()
            raise
        return opened

    def _start(self, guard: Guard, copies: Sequence[Copies]) -> None:
        for index, command in enumerate(self._commands):
            child = Child(command, index, self._console, copies[index], in_child=guard.protect_this_process)
            self._children.append(child)
            for stream in child.streams:
                self._selector.register(stream.pipe, selectors.EVENT_READ, stream)

    def _wait(self, wakeup: SignalWakeup) -> None:
        for key, _ in self._selector.select(self._time_to_wait()):
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
        if self._looks_for_stopped():
            self._check_stopped()

    def _time_to_wait(self) -> float | None:
        if self._steps:
            return max(self._steps[0][0] - time.monotonic(), 0)
        return self._patience.of_stopped / _LOOKS_PER_TIMEOUT if self._looks_for_stopped() else None

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
            (0.0, number), (self._patience.to_interrupt, signal.SIGTERM), (self._patience.to_stop, signal.SIGKILL)
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
        if number == signal.SIGTERM:
            self._kill_stopped()

    def _kill_stopped(self) -> None:
        """Those that are stopped hear of no other signal."""
        for child in self._children:
            if child.is_running and child.is_stopped():
                child.send(signal.SIGKILL)

    def _reap(self, guard: Guard) -> None:
        ended = [child for child in self._children if child.is_running and child.has_ended()]
        now = time.time()
        for child in ended:
            for stream in child.streams:
                if stream.pipe in self._selector.get_map():
                    self._selector.unregister(stream.pipe)
            child.reap(now)
            guard.release(child.pid)
        if any(child.exit_code != 0 for child in ended):
            self._on_failure()
        elif ended and not self._steps and not any(c.is_running and not c.command.is_server for c in self._children):
            self._schedule((self._patience.to_leave, signal.SIGTERM), (self._patience.to_stop, signal.SIGKILL))

    def _on_failure(self) -> None:
        if self._is_stopping:
            return
        self._has_failed = True
        self._is_stopping = True
        if any(child.is_running for child in self._children):
            failed = ", ".join(c.command.label for c in self._children if not c.is_running and c.exit_code != 0)
            self._console.say(f"{failed} failed; stopping the others in {self._patience.to_report:g} s")
        self._kill_stopped()
        self._schedule((self._patience.to_report, signal.SIGTERM), (self._patience.to_stop, signal.SIGKILL))

    def _looks_for_stopped(self) -> bool:
        """Before the first worker has left its job, the others notice that one is stopped; afterwards nobody would."""
        is_over = any(not child.is_running and not child.command.is_server for child in self._children)
        return is_over and not self._steps

    def _check_stopped(self) -> None:
        now = time.monotonic()
        stopped = {child for child in self._children if child.is_running and child.is_stopped()}
        self._stopped_since = {child: self._stopped_since.get(child, now) for child in stopped}
        for child, since in self._stopped_since.items():
            if now - since >= self._patience.of_stopped:
                child.remark = f"it was stopped for {now - since:.0f} s after others had ended, so bpslaunch killed it"
                child.send(signal.SIGKILL)

    def _judge(self) -> int:
        for child in self._children:
            if child.is_running:
                self._console.say(f"{name_of(child)} does not end after SIGKILL: it hangs in the kernel")
        first = first_failure(self._children) if self._has_failed else None
        if first is None:
            return 128 + self._signal if self._signal is not None else 0
        for line in verdict(first, self._children):
            self._console.say(line)
        return first.exit_code
