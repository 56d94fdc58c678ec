"""A process that ends the job's processes should the launcher be killed without a chance to do so.

It learns the process groups through a pipe, whose end-of-file is the launcher's death. Unlike the kernel's
parent-death signal this reaches grandchildren too (a shell's command, a data loader's workers).
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from types import TracebackType


class Guard:
    """Forks when built, so there must be no other thread. To be used as a context."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is removed at the end."""
        reader, self._writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _stand_guard(reader, folder)
        os.close(reader)

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._writer)
        os.waitpid(self._pid, 0)

    def protect_this_process(self) -> None:
        """In a child that leads a process group, before its program starts.

        The child tells it itself: between its beginning and anything that the launcher could say, the launcher may be
        killed. And while the child has not told it yet, it has the pipe open, too.
        """
        self._tell(os.getpid())

    def release(self, group: int) -> None:
        """The group is gone; its number may be given to others."""
        self._tell(-group)

    def _tell(self, number: int) -> None:
        with suppress(BrokenPipeError):  # the guard was killed; the job goes on
            os.write(self._writer, f"{number}\n".encode())


def _stand_guard(reader: int, folder: Path | None) -> None:
    """The child's life. Never returns."""
    try:
        os.setsid()  # out of reach of the terminal's Ctrl-C
        _close_all_but(reader)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        groups: set[int] = set()
        with os.fdopen(reader) as lines:
            for line in lines:
                number = int(line)
                groups.add(number) if number > 0 else groups.discard(-number)
        for group in groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _close_all_but(fd: int) -> None:
    """Sockets above all: one that the guard held open would look alive to those who connect to it."""
    os.closerange(3, fd)
    os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
