"""A group of processes that end together: the first failure stops all of them."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from byteps.errors import InvalidArgumentError

from .child import OVER, STDERR, STDOUT, Child, Command, Copies
from .discovery import Discovery
from .guard import Guard
from .output import Console, Stream
from .verdict import first_failure, name_of, verdict
from .wakeup import SignalWakeup

__all__ = ["STDERR", "STDOUT", "Command", "GracePeriods", "ProcessGroup"]

_GIVE_UP_S = 10.0  # time after SIGKILL until the launcher gives up
_CHECKS_PER_TIMEOUT = 4
_CANNOT_START = 127  # exit code, as in a shell
_STDIN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GracePeriods:
    """Times in seconds before processes are stopped with a stronger signal."""

    to_report: float = 5.0  # from a failure to SIGTERM: others may report their own exceptions
    to_leave: float = 10.0  # from the end of the last worker to SIGTERM for servers
    to_interrupt: float = 5.0  # from SIGINT to SIGTERM
    to_stop: float = 30.0  # from SIGTERM to SIGKILL
    of_stopped: float = 30.0  # from the end of others to SIGKILL for a stopped process


class ProcessGroup:
    """Runs commands until all have ended, in one thread."""

    def __init__(
        self,
        commands: Sequence[Command],
        console: Console,
        grace: GracePeriods = GracePeriods(),
        folder: Path | None = None,
        max_restarts: int = 0,
        discovery: Discovery | None = None,
        *,
        ends_with_stdin: bool = False,
    ) -> None:
        """Creates a group that has not started.

        `folder` is removed at the end, also if the launcher is killed. `max_restarts`: how often a
        server, or a worker of an elastic job, that is lost is started again, in all. `discovery`:
        where workers come from, besides `commands`. `ends_with_stdin`: the end of standard input
        stops the group, like SIGTERM.
        """
        self._commands = commands
        self._console = console
        self._grace = grace
        self._folder = folder
        self._restarts_left = max_restarts
        self._discovery = discovery
        self._ends_with_stdin = ends_with_stdin
        self._copies: list[Copies] = []
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._has_failed = False
        self._signal: signal.Signals | None = None  # the signal that stops the launcher
        self._is_stopping = False  # later failures are consequences of the first one or of a signal
        # Times and the signals to send then; None: give up.
        self._steps: deque[tuple[float, signal.Signals | None]] = deque()
        self._stopped_since: dict[Child, float] = {}  # filled after the first worker has ended
        self._leaving_since: dict[Child, float] = {}  # workers of machines that the discovery has given up

    def run(self) -> int:
        """Runs the job and returns its exit code.

        The exit code is 0, that of the process that failed first, or 128 + the signal that stopped
        the launcher.

        Raises:
            InvalidArgumentError: a log file cannot be opened. No process was started.
            OSError: a command cannot be started, or the console cannot be written to. All processes
                were killed.
        """
        with Guard(self._folder) as guard, SignalWakeup() as wakeup, self._selector:
            self._selector.register(wakeup.fileno(), selectors.EVENT_READ, None)
            if self._ends_with_stdin:
                self._selector.register(_STDIN, selectors.EVENT_READ, None)
            self._copies = self._open_copies()
            try:
                for index, command in enumerate(self._commands):
                    self._start(command, index, self._copies[index], guard)
                while any(child.is_running for child in self._children) and not self._gave_up():
                    self._wait(wakeup)
                    self._reap(guard)
                    self._follow_discovery(guard)
            finally:
                if self._discovery is not None:
                    self._discovery.close()
                for child in self._children:
                    if child.is_running:
                        child.send(signal.SIGKILL)
                for files in self._copies:
                    for file in files.values():
                        file.close()
        return self._judge()

    def _open_copies(self) -> list[Copies]:
        """Opens all log files, before any process starts."""
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

    def _start(self, command: Command, index: int, copies: Copies, guard: Guard) -> None:
        child = Child(command, index, self._console, copies, in_child=guard.protect_this_process)
        self._children.append(child)
        for stream in child.streams:
            self._selector.register(stream.pipe, selectors.EVENT_READ, stream)

    def _start_again(self, lost: Child, guard: Guard) -> None:
        """Starts a process in place of the lost one, if it may, and says so."""
        command = lost.command.again()
        try:
            copies = command.open_copies()
            self._copies.append(copies)
            self._start(command, lost.index, copies, guard)
        except (InvalidArgumentError, OSError) as error:
            self._console.say(f"{command.label} cannot be started again: {error}")
        else:
            self._restarts_left -= 1
            self._console.say(f"{command.label} starts again; restarts left: {self._restarts_left}")

    def _follow_discovery(self, guard: Guard) -> None:
        if self._discovery is None or self._is_stopping:
            return
        self._kill_leaving()
        if self._is_finished():
            return
        commands, leavers = self._discovery.step(time.monotonic())
        for command in commands:
            self._console.say(f"{command.label}: starts workers")
            try:
                copies = command.open_copies()
                self._copies.append(copies)
                self._start(command, len(self._children), copies, guard)
            except (InvalidArgumentError, OSError) as error:
                self._console.say(f"{command.label}: cannot start workers: {error}")
                self._discovery.on_end(command.label, _CANNOT_START, time.monotonic())
        for child in self._children:
            if child.is_running and not child.was_told_to_end and child.command.label in leavers:
                self._console.say(f"{child.command.label}: its workers leave")
                self._leaving_since[child] = time.monotonic()
                child.send(signal.SIGTERM)

    def _kill_leaving(self) -> None:
        """Kills what should have left: the machine may be dead."""
        for child, since in self._leaving_since.items():
            if child.is_running and time.monotonic() - since >= self._grace.to_stop:
                child.send(signal.SIGKILL)

    def _is_finished(self) -> bool:
        """Whether a worker has finished its program."""
        return any(not c.is_running and c.exit_code == 0 and not c.command.is_server for c in self._children)

    def _wait(self, wakeup: SignalWakeup) -> None:
        for key, _ in self._selector.select(self._time_to_wait()):
            stream: Stream | None = key.data
            if key.fd == _STDIN:
                self._on_stdin(os.read(_STDIN, 4096))
            elif stream is not None:
                if stream.read() == 0:  # end-of-file
                    self._selector.unregister(stream.pipe)
            else:
                for number in wakeup.read():
                    self._on_signal(number)
        while self._steps and self._steps[0][0] <= time.monotonic() and not self._gave_up():
            _, number_due = self._steps.popleft()
            if number_due is not None:
                self._send_all(number_due)
        if self._watches_stopped():
            self._check_stopped()

    def _on_stdin(self, said: bytes) -> None:
        if not said:
            self._selector.unregister(_STDIN)
            self._on_signal(signal.SIGTERM)
        elif OVER in said:
            self._say_over()

    def _say_over(self) -> None:
        for child in self._children:
            if child.is_running:
                child.say_over()

    def _time_to_wait(self) -> float | None:
        if self._steps:
            return max(self._steps[0][0] - time.monotonic(), 0)
        times = [self._grace.of_stopped / _CHECKS_PER_TIMEOUT] if self._watches_stopped() else []
        if self._discovery is not None and not self._is_stopping:
            now = time.monotonic()
            times.append(max(self._discovery.next_at(now) - now, 0))
        return min(times, default=None)

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
        self._console.say(f"{number.name}: stopping the processes; send it again to kill them")
        self._schedule((0.0, number), (self._grace.to_interrupt, signal.SIGTERM), (self._grace.to_stop, signal.SIGKILL))

    def _schedule(self, *steps: tuple[float, signal.Signals]) -> None:
        """Replaces the scheduled steps. Each step: seconds after the previous one, signal."""
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
        """Kills stopped processes, which react to no other signal."""
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
        for child in ended:
            if child.is_lost and not self._is_stopping:
                self._on_lost(child, guard)
        self._tell_of(ended)
        if any(child.exit_code != 0 and not child.is_lost for child in ended) or self._all_workers_are_lost():
            self._on_failure()
        elif self._is_at_end(ended) and not self._steps:
            self._schedule((self._grace.to_leave, signal.SIGTERM), (self._grace.to_stop, signal.SIGKILL))

    def _on_lost(self, child: Child, guard: Guard) -> None:
        if child.was_told_to_end:
            self._console.say(f"{child.command.label}: its workers have left")
            return
        self._console.say(f"{name_of(child)} {child.how_it_ended()}; the job may go on without it")
        if self._may_start_again(child):
            self._start_again(child, guard)

    def _tell_of(self, ended: Sequence[Child]) -> None:
        if any(child.command.judges and child.exit_code == 0 for child in ended):
            self._say_over()
        if self._discovery is not None and not self._is_stopping:
            for child in ended:
                if not child.command.is_server:
                    self._discovery.on_end(child.command.label, child.exit_code, time.monotonic())

    def _is_at_end(self, ended: Sequence[Child]) -> bool:
        """Whether workers have ended, and no other runs or will run."""
        have_ended = self._is_finished() if self._discovery is not None else bool(ended)
        return have_ended and not any(c.is_running and not c.command.is_server for c in self._children)

    def _may_start_again(self, lost: Child) -> bool:
        """Not if the job is over: no worker runs, or one has finished its program."""
        workers = [child for child in self._children if not child.command.is_server]
        has_finished = lost.command.is_elastic and any(not w.is_running and w.exit_code == 0 for w in workers)
        goes_on = any(worker.is_running for worker in workers) and not has_finished
        return goes_on and lost.command.may_restart and self._restarts_left > 0

    def _all_workers_are_lost(self) -> bool:
        if self._discovery is not None:  # others may come; if none does, the coordinator ends the job
            return False
        workers = [child for child in self._children if not child.command.is_server]
        return all(not worker.is_running and worker.is_lost for worker in workers)

    def _on_failure(self) -> None:
        if self._is_stopping:
            return
        self._has_failed = True
        self._is_stopping = True
        if any(child.is_running for child in self._children):
            failed = ", ".join(c.command.label for c in self._children if not c.is_running and c.exit_code != 0)
            self._console.say(f"{failed} failed; stopping the others in {self._grace.to_report:g} s")
        self._kill_stopped()
        self._schedule((self._grace.to_report, signal.SIGTERM), (self._grace.to_stop, signal.SIGKILL))

    def _watches_stopped(self) -> bool:
        """Whether to check for stopped processes: until the first worker ends, other ranks do."""
        is_over = any(not child.is_running and not child.command.is_server for child in self._children)
        return is_over and not self._steps

    def _check_stopped(self) -> None:
        now = time.monotonic()
        stopped = {child for child in self._children if child.is_running and child.is_stopped()}
        self._stopped_since = {child: self._stopped_since.get(child, now) for child in stopped}
        for child, since in self._stopped_since.items():
            if now - since >= self._grace.of_stopped:
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
