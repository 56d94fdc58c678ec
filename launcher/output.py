"""Writes the output of the processes, line by line and with their names, to the launcher's output.

Lines of different processes never mix. On a terminal, progress bars (text that is overwritten after
a carriage return) stay at the bottom; elsewhere only their last state is written.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import IO

_READ_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 16  # longer lines are split
_MAX_DRAIN_BYTES = 1 << 20  # capacity of a pipe
_CLEAR = b"\r\x1b[K"
_COLORS = (36, 33, 32, 35, 34, 31)


class Console:
    """The launcher's standard output and standard error."""

    def __init__(self, stdout: int = 1, stderr: int = 2) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._terminals = {fd for fd in (stdout, stderr) if os.isatty(fd)}
        self._bar: tuple[int, bytes] | None = None  # stream and text of the progress bar

    def prefix(self, fd: int, label: str, index: int) -> bytes:
        if fd not in self._terminals:
            return f"[{label}] ".encode()
        return f"\x1b[{_COLORS[index % len(_COLORS)]}m[{label}]\x1b[0m ".encode()

    def write_line(self, fd: int, line: bytes) -> None:
        bar = self._bar
        if bar is not None and fd in self._terminals:
            _write(fd, _CLEAR + line + b"\n")
            _write(*bar)
        else:
            _write(fd, line + b"\n")

    def show_bar(self, fd: int, bar: bytes) -> None:
        """Replaces the bar at the bottom of the terminal; empty: removes it.

        Does nothing without a terminal.
        """
        if fd in self._terminals:
            columns = max(os.get_terminal_size(fd).columns, 20)
            bar = bar.decode(errors="replace")[: columns - 1].encode()
            _write(fd, _CLEAR + bar)
            self._bar = (fd, bar) if bar else None

    def say(self, text: str) -> None:
        """Writes a line of the launcher itself."""
        self.write_line(self.stderr, f"bpslaunch: {text}".encode(errors="replace"))


class Stream:
    """Copies an output stream of a process from its pipe to the console and to a file.

    Calls `on_line` with each line.
    """

    def __init__(
        self, pipe: IO[bytes], console: Console, fd: int, prefix: bytes, on_line: Callable[[bytes], object]
    ) -> None:
        self.pipe = pipe
        self.copy: IO[bytes] | None = None
        self._console = console
        self._fd = fd
        self._prefix = prefix
        self._on_line = on_line
        self._pending = b""  # the unfinished line
        self._bar = b""
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> int | None:
        """Copies available output. Returns its size, 0 at the end, None if there is none now."""
        try:
            data = os.read(self.pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return None
        if self.copy is not None:
            self.copy.write(data)
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._end_line(line)
        self._show_unfinished()
        return len(data)

    def finish(self) -> None:
        """Copies the rest and closes the pipe, which a descendant of the process may have open."""
        drained = 0
        while (count := self.read()) and (drained := drained + count) < _MAX_DRAIN_BYTES:
            pass
        if self._pending:
            self._end_line(self._pending)
        self.pipe.close()
        if self.copy is not None:
            self.copy.close()

    def _end_line(self, line: bytes) -> None:
        if self._bar:
            self._bar = b""
            self._console.show_bar(self._fd, b"")
        text = line.rstrip(b"\r").rpartition(b"\r")[2]
        self._on_line(text)
        self._console.write_line(self._fd, self._prefix + text)

    def _show_unfinished(self) -> None:
        if b"\r" in self._pending:
            self._pending = b"\r" + self._pending.strip(b"\r").rpartition(b"\r")[2]
            bar = self._pending[1:].rstrip()
            if bar != self._bar:
                self._bar = bar
                self._console.show_bar(self._fd, self._prefix + bar if bar else b"")
        if len(self._pending) > _MAX_LINE_BYTES:
            self._end_line(self._pending)
            self._pending = b""


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # the output may be non-blocking
            select.select([], [fd], [])
