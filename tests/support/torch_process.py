"""Starts Python programs that use PyTorch or other slow modules without importing them again.

Like subprocess.Popen, but many times faster.
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
class Forkserver:
    """Identifies a forkserver; the first process that uses it starts it."""

    number: int = 0
    imports: tuple[str, ...] = ("torch._dynamo", "torch.distributed.fsdp")  # start no threads

    def start(self, python_path: str) -> None:
        """Starts the forkserver, which imports its modules in the background."""
        _connect(self, python_path)


class TorchProcess:
    """A child of this process, with the methods of subprocess.Popen that tests use.

    Three things differ from an ordinary process: it shares the seed of str hashes with the other
    programs of its `forkserver`, OMP_NUM_THREADS is 1, and its garbage collector ignores the
    objects that the forkserver has imported.
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
        forkserver: Forkserver = Forkserver(),
    ) -> None:
        """Starts `python *command`.

        Args:
            command: a script, -c or -m, and arguments.
            env: the whole environment, with support.job.job_environment's PYTHONPATH.
            output: descriptor for stdout and stderr.
            folder: working folder; None: this process's.
            files: descriptors that the program gets under the same numbers.
            has_stdin: `stdin` is a pipe to the program; otherwise its stdin is empty.
            forkserver: programs of one forkserver share a hash seed; ranks of a job should not.
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
            "targets": [0, 1, 2, *files],
        }
        try:
            self.pid = _ask(
                forkserver, env["PYTHONPATH"], json.dumps(request).encode(), [read_end, output, output, *files]
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


def _ask(forkserver: Forkserver, python_path: str, request: bytes, files: list[int]) -> int:
    """Starts a program and returns its pid."""
    connection = _connect(forkserver, python_path)
    # The intermediate process has ended when the answer arrives. Until then this process adopts
    # orphans.
    _adopt_orphans(True)
    try:
        socket.send_fds(connection, [request], files)
        answer = connection.recv(32)
    finally:
        _adopt_orphans(False)
    if not answer:
        raise RuntimeError("the forkserver has ended: see its error message above")
    return int(answer)


@functools.cache
def _connect(forkserver: Forkserver, python_path: str) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path}
    env.pop("PYTHONHASHSEED", None)
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("forkserver.py"), str(theirs.fileno()), *forkserver.imports],
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


def _adopt_orphans(enabled: bool) -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
