"""Stops one thread of a process, while the others run."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WAIT_ALL = 0x40000000  # __WALL: also for threads


@contextmanager
def hanging(pid: int, thread: str) -> Iterator[None]:
    """Stops the thread of this name, like a debugger, until the context or the process ends."""
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().strip() == thread]
    assert len(tasks) == 1, f"process {pid} has {len(tasks)} threads of the name {thread}"
    tid = int(tasks[0].name)
    _trace(_SEIZE, tid)
    _trace(_INTERRUPT, tid)
    os.waitpid(tid, _WAIT_ALL)
    try:
        yield
    finally:
        _trace(_DETACH, tid, check=False)  # the process may have ended


def _trace(request: int, tid: int, *, check: bool = True) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, tid, None, None) != 0 and check:
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace: {os.strerror(code)}")
