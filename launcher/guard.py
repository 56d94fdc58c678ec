"""A process that kills the job's processes if the launcher is killed.

It reads the process groups from a pipe, and end-of-file means that the launcher has died. Unlike
the kernel's parent-death signal this reaches grandchildren, too, such as workers of data loaders.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from types import TracebackType


class Guard:
    """A context manager. The constructor forks, so there must be no other thread."""

    def __init__(self, folder: Path | None = None) -> None:
        """Args: `folder` is removed at the end."""
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
        """Registers this process, which leads a process group, before its program starts.

        The child itself registers, since the launcher may be killed right after the fork. The child
        also has the pipe open until then, so that the guard does not see an end-of-file.
        """
        self._tell(os.getpid())

    def release(self, group: int) -> None:
        """Unregisters a group that has ended, since its number may be reused."""
        self._tell(-group)

    def _tell(self, number: int) -> None:
        with suppress(BrokenPipeError):  # the guard was killed; the job goes on
            os.write(self._writer, f"{number}\n".encode())


def _stand_guard(reader: int, folder: Path | None) -> None:
    """The program of the guard. Never returns."""
    try:
        os.setsid()  # Ctrl-C of the terminal does not reach the guard
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
    """Closes all other descriptors. A socket that stays open would accept connections."""
    os.closerange(3, fd)
    os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
