"""Python programs that use PyTorch or other modules that take long to import, started without importing them anew.

As subprocess.Popen, and many times as fast.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.01


@dataclass(frozen=True)
class Nursery:
    """What processes are forked from; the first one starts it."""

    number: int = 0
    imports: tuple[str, ...] = ("torch._dynamo", "torch.distributed.fsdp")  # which start no threads

    def start(self, python_path: str) -> None:
        """Lets it import while this process does something else: its first program has less to wait for then."""
        _nursery(self, python_path)


class TorchProcess:
    """A child of this process, with what tests use of subprocess.Popen.

    It differs from a process of its own in what is decided before the first line of a program: it shares the seed of
    str hashes with others of its `nursery`, OMP_NUM_THREADS is 1, and its garbage collector leaves alone what the
    nursery has imported.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        env: Mapping[str, str],
        output: int,
        *,
        folder: Path | None = None,
        files: Sequence[int] = (),
        has_stdin: bool = False,
        nursery: Nursery = Nursery(),
    ) -> None:
        """Starts `python *command`.

        Args:
            command: a script, -c or -m, and arguments.
            env: the whole environment, with support.job.job_environment's PYTHONPATH.
            output: descriptor for both streams.
            folder: to run in; None: this process's.
            files: descriptors that it finds under the same numbers.
            has_stdin: `stdin` is a pipe to it; else it reads nothing.
            nursery: those of the same share a hash seed. Ranks of a job should not.
        """
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        read_end = os.open(os.devnull, os.O_RDONLY)
        if has_stdin:
            os.close(read_end)
            read_end, write_end = os.pipe()
            self.stdin = os.fdopen(write_end, "wb")
        request = {
            "command": [str(word) for word in command],
            "env": dict(env),
            "folder": str(folder or Path.cwd()),
            "places": [0, 1, 2, *files],
        }
        try:
            self.pid = _ask(
                nursery, env["PYTHONPATH"], json.dumps(request).encode(), [read_end, output, output, *files]
            )
        finally:
            os.close(read_end)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_POLL_S)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _ask(nursery: Nursery, python_path: str, request: bytes, files: list[int]) -> int:
    """The pid of a new process."""
    connection = _nursery(nursery, python_path)
    # The process between the nursery and the new one has ended when the answer comes. Until then orphans are ours.
    _adopt_orphans(True)
    try:
        socket.send_fds(connection, [request], files)
        answer = connection.recv(32)
    finally:
        _adopt_orphans(False)
    if not answer:
        raise RuntimeError("the nursery has ended: see its error message above")
    return int(answer)


@functools.cache
def _nursery(nursery: Nursery, python_path: str) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path}
    env.pop("PYTHONHASHSEED", None)
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("nursery.py"), str(theirs.fileno()), *nursery.imports],
        env=env,
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _adopt_orphans(does: bool) -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(does), 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
