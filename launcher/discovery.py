"""Machines of an elastic job that a program of the user names: which workers to start where, and when.

No process of the job is started here: `ProcessGroup` asks for commands, and says how they have
ended. Each command is a bpslaunch on one machine, which ends when its standard input closes.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import killpg
from pathlib import Path
from typing import IO

from byteps.errors import InvalidArgumentError

from .child import Command

__all__ = ["Discovery", "HostScript", "parse_hosts", "remote_command"]

PERIOD_S = 1.0  # between two runs of the script, as in Horovod
SCRIPT_LIMIT_S = 60.0
FIRST_PAUSE_S = 2.0  # before a host whose workers have failed is tried again; doubled each time

# As with ssh, the shell at the other end takes one string. Not the current folder: it may be a clone
# that was not built.
_LAUNCHER = (
    "import sys; sys.path = [p for p in sys.path if p]; from byteps.launcher.launch import main; sys.exit(main())"
)
_PASSED = ("BYTEPS_", "DMLC_", "HOROVOD_", "OMP_")
_PASSED_NAMES = {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV"}
_SECRETS = {"BYTEPS_SECRET", "BYTEPS_SECRET_FILE"}


def parse_hosts(text: str, slots: int) -> dict[str, int]:
    """Returns the number of workers on each host of a script's output: HOST or HOST:SLOTS a line.

    Args:
        text: empty lines, and what follows a #, do not count.
        slots: of hosts without a number.

    Raises:
        InvalidArgumentError: a line is neither.
    """
    hosts: dict[str, int] = {}
    for line in text.splitlines():
        if not (entry := line.partition("#")[0].strip()):
            continue
        host, colon, number = entry.rpartition(":")
        if not colon:
            host, number = entry, str(slots)
        is_name = bool(host) and not host.startswith("-") and not any(c.isspace() or c == ":" for c in host)
        if not is_name or not number.isdecimal() or int(number) < 1:
            raise InvalidArgumentError(f"line {line!r}: expected HOST or HOST:SLOTS")
        hosts[host] = int(number)
    return hosts


class HostScript:
    """Runs the user's program again and again, one at a time, without waiting for it."""

    def __init__(self, argv: Sequence[str], slots: int) -> None:
        self._argv = argv
        self._slots = slots
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._since = float("-inf")  # start of the last run

    def step(self, now: float) -> dict[str, int] | None:
        """Starts and ends runs. Returns the hosts if a run has ended.

        Raises:
            InvalidArgumentError: the run has failed, or its output is not a list of hosts.
        """
        if self._process is None:
            if now - self._since >= PERIOD_S:
                self._start(now)
            return None
        if self._process.poll() is None and now - self._since < SCRIPT_LIMIT_S:
            return None
        return self._finish()

    def next_at(self) -> float:
        return self._since + (PERIOD_S if self._process is None else SCRIPT_LIMIT_S)

    def close(self) -> None:
        """Ends a run."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._output is not None:
            self._output.close()
        self._process = self._output = None

    def _start(self, now: float) -> None:
        self._since = now
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        try:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=self._output, start_new_session=True
            )
        except OSError as error:
            self._output.close()
            raise InvalidArgumentError(f"cannot run {self._argv[0]}: {error.strerror}") from None

    def _finish(self) -> dict[str, int]:
        assert self._process is not None
        assert self._output is not None
        code = self._process.poll()
        self._output.seek(0)
        text = self._output.read().decode(errors="replace")
        self.close()
        if code is None:
            raise InvalidArgumentError(f"{self._argv[0]} has run for {SCRIPT_LIMIT_S:g} s, and was killed")
        if code != 0:
            raise InvalidArgumentError(f"{self._argv[0]} ended with code {code}")
        return parse_hosts(text, self._slots)


@dataclass
class _Host:
    slots: int
    number: int  # counts the hosts so far
    is_running: bool = False
    failures: int = 0
    not_before: float = 0.0


@dataclass
class Discovery:
    """Which hosts have workers. A host that is listed has, unless its workers have failed too often."""

    script: HostScript
    make_command: Callable[[str, int, int], Command]  # host, slots, number of the host
    say: Callable[[str], None]
    max_failures: int  # of a host's workers, one after the other
    _hosts: dict[str, _Host] = field(default_factory=dict)
    _listed: dict[str, int] = field(default_factory=dict)
    _numbers: int = 0
    _complaint: str = ""

    def step(self, now: float) -> tuple[list[Command], list[str]]:
        """Returns the commands to start now, and the labels of those to end."""
        try:
            listed = self.script.step(now)
        except InvalidArgumentError as error:
            listed = None
            if str(error) != self._complaint:  # once, not each second
                self.say(f"--host-discovery-script: {error}; the hosts stay as they are")
            self._complaint = str(error)
        if listed is not None:
            self._complaint = ""
            self._listed = listed
        return self._commands(now), self._leavers()

    def next_at(self, now: float) -> float:
        """Returns when to call `step` again, at the latest."""
        return min(self.script.next_at(), *(host.not_before for host in self._waiting(now)), now + SCRIPT_LIMIT_S)

    def on_end(self, label: str, exit_code: int, now: float) -> None:
        """The command of this host has ended."""
        host = self._hosts[label]
        host.is_running = False
        if self._listed.get(label) != host.slots:  # it was told to end
            return
        host.failures += exit_code != 0
        pause_s = FIRST_PAUSE_S * 2**host.failures
        host.not_before = now + pause_s
        if host.failures > self.max_failures:
            self.say(f"{label}: its workers have failed {host.failures} times; it is not used any more")
        elif exit_code != 0:
            self.say(f"{label}: tries again in {pause_s:g} s")

    def close(self) -> None:
        self.script.close()

    def _waiting(self, now: float) -> list[_Host]:
        hosts = [self._hosts[name] for name in self._listed if name in self._hosts]
        return [host for host in hosts if not host.is_running and host.not_before > now]

    def _commands(self, now: float) -> list[Command]:
        commands = []
        for name, slots in self._listed.items():
            host = self._hosts.get(name)
            if host is None:
                self._numbers += 1
                host = self._hosts[name] = _Host(slots, self._numbers)
            if host.is_running or host.failures > self.max_failures or host.not_before > now:
                continue
            host.slots, host.is_running = slots, True
            commands.append(self.make_command(name, slots, host.number))
        return commands

    def _leavers(self) -> list[str]:
        """A host that is listed with another number of slots ends first, and comes back with it."""
        leavers = [
            name for name, host in self._hosts.items() if host.is_running and self._listed.get(name) != host.slots
        ]
        for name in leavers:
            if name not in self._listed:
                self._hosts[name].failures = 0
        return leavers


def remote_command(
    shell: Sequence[str], host: str, flags: Sequence[str], command: Sequence[str], environ: Mapping[str, str]
) -> Sequence[str]:
    """Returns the arguments that start a bpslaunch on `host` in the current folder.

    Args:
        shell: the remote shell; empty: the host is this machine.
        host: as the shell knows it.
        flags: of bpslaunch.
        command: of the workers.
        environ: what of it concerns byteps is passed on, but no secret: other users see arguments.
    """
    launcher = [sys.executable, "-c", _LAUNCHER, *flags, "--", *command]
    if not shell:
        return launcher
    passed = {
        name: value
        for name, value in environ.items()
        if (name.startswith(_PASSED) or name in _PASSED_NAMES) and name not in _SECRETS
    }
    assignments = [f"{name}={value}" for name, value in sorted(passed.items())]
    return [*shell, host, f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(['env', *assignments, *launcher])}"]
