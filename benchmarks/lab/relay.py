"""The switch of a lab with a bad network: starts relay.cc, which says what it does, and commands it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

_SOURCE = Path(__file__).with_name("relay.cc")
_PROGRAM = Path(__file__).resolve().parents[2] / "build" / "lab_relay"
_LONGEST_MS = 10_000
LARGEST_MTU = 9216  # bytes; the relay's buffers hold such a packet with its Ethernet header


@dataclass(frozen=True)
class Impairments:
    """What happens to the packets of a path, which leads from one host to another one.

    The impairments apply once to each packet, however many links it crosses. An answer takes the
    path of the other direction, so a round trip takes twice the delay.

    Raises:
        ValueError: a figure is not a percentage from 0 to 100 or a time from 0 to 10,000 ms.
    """

    loss_percent: float = 0.0
    duplicate_percent: float = 0.0
    reorder_percent: float = 0.0  # of the packets are held back for 1 ms, others overtake them
    delay_ms: float = 0.0
    jitter_ms: float = 0.0  # added to the delay, uniform from 0 to this; keeps the order

    def __post_init__(self) -> None:
        percents = (self.loss_percent, self.duplicate_percent, self.reorder_percent)
        times_ms = (self.delay_ms, self.jitter_ms)
        if not all(0 <= each <= 100 for each in percents) or not all(0 <= each <= _LONGEST_MS for each in times_ms):
            raise ValueError(f"expected percentages from 0 to 100 and times from 0 to {_LONGEST_MS} ms, got {self!r}")

    def __str__(self) -> str:
        shown = [
            f"{value:g} {unit} {name}"
            for value, unit, name in (
                (self.loss_percent, "%", "lost"),
                (self.duplicate_percent, "%", "twice"),
                (self.reorder_percent, "%", "reordered"),
                (self.delay_ms, "ms", "delay"),
                (self.jitter_ms, "ms", "jitter"),
            )
            if value
        ]
        return ", ".join(shown) or "clean"


@dataclass(frozen=True)
class Counts:
    """Packets of a path so far."""

    carried: int
    lost: int  # on purpose; what a full queue of a link drops is not in it
    duplicated: int
    reordered: int


class Relay:
    """A running relay between interfaces of one network namespace, until close()."""

    def __init__(self, before: Sequence[str], interfaces: Sequence[str]) -> None:
        """Starts it.

        Args:
            before: words before its command, which bring it into the namespace.
            interfaces: interface i leads to host i.
        """
        self._process = subprocess.Popen(
            [*before, _compiled(), *interfaces],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # Ctrl-C is for our owner
        )
        self._hosts = len(interfaces)
        self.pid = self._process.pid
        try:
            self._read("start")
        except BaseException:
            self.close()
            raise

    def impair(self, impairments: Impairments, sender: int | None = None, receiver: int | None = None) -> None:
        """Sets the impairments of paths: from a host or from all, to a host or to all."""
        shares = (impairments.loss_percent, impairments.duplicate_percent, impairments.reorder_percent)
        times_us = (impairments.delay_ms * 1e3, impairments.jitter_ms * 1e3)
        numbers = [*(each / 100 for each in shares), *times_us]
        self._command("impair", sender, receiver, *(f"{each:.9g}" for each in numbers))

    def cut(self, sender: int | None = None, receiver: int | None = None) -> None:
        """Lets paths carry nothing until mend(); the opposite directions stay as they are."""
        self._command("cut", sender, receiver)

    def mend(self, sender: int | None = None, receiver: int | None = None) -> None:
        """Undoes cut()."""
        self._command("mend", sender, receiver)

    def counts(self, sender: int | None = None, receiver: int | None = None) -> Counts:
        """Returns the sums over the paths."""
        return Counts(*map(int, self._command("counts", sender, receiver)))

    def overruns(self) -> int:
        """Returns how many packets were lost so far because the relay was too slow.

        A measurement with more than a few of them says something about this machine, not about the
        network that the lab plays.
        """
        return int(self._ask("overruns")[0])

    def late(self) -> int:
        """Returns how many packets the relay was ready to hand on more than 5 ms after their time.

        They are a measure of how busy this machine is, as `overruns` is.
        """
        return int(self._ask("late")[0])

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()

    def _command(self, name: str, sender: int | None, receiver: int | None, *words: str) -> list[str]:
        for host in (sender, receiver):
            if host is not None and not 0 <= host < self._hosts:
                raise ValueError(f"expected a host from 0 to {self._hosts - 1}, got {host}")
        if sender is not None and sender == receiver:
            raise ValueError(f"there is no path from host {sender} to itself")
        return self._ask(" ".join([name, *("*" if host is None else str(host) for host in (sender, receiver)), *words]))

    def _ask(self, line: str) -> list[str]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
        except OSError as error:
            raise RuntimeError(f"the lab's relay has ended: {error}") from None
        return self._read(line)

    def _read(self, what: str) -> list[str]:
        assert self._process.stdout is not None
        state, *words = self._process.stdout.readline().split() or ["nothing"]
        if state not in ("ok", "ready"):
            raise RuntimeError(f"the lab's relay, {what}: expected ok, got {' '.join([state, *words])}")
        return words


def why_no_relay() -> str | None:
    """The reason for which this machine can have no relay; None if it can."""
    return None if which("c++") else "c++ missing (Debian: g++)"


def _compiled() -> Path:
    if not _PROGRAM.exists() or _PROGRAM.stat().st_mtime < _SOURCE.stat().st_mtime:
        _PROGRAM.parent.mkdir(exist_ok=True)
        # Labs that start at the same time each make their own and put it there at once.
        own = _PROGRAM.with_name(f"{_PROGRAM.name}.{os.getpid()}")
        subprocess.run(["c++", "-std=c++20", "-O2", "-o", own, _SOURCE], check=True)
        own.replace(_PROGRAM)
    return _PROGRAM
