"""A server that forks Python programs from a process that has already imported slow modules.

    python forkserver.py FD MODULE...

Each message on the socket FD describes one program in JSON and carries its files as descriptors.
The answer is its pid. `support.torch_process` is the client.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import types
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 1 << 17
HIGH_FD = 500  # above every descriptor number that a program asks for


def main() -> list[str] | None:
    """Serves requests. Returns the command in each forked program; None: the socket was closed."""
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # otherwise a collection in a program would copy all pages of the modules
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    assert threads == 1, f"{threads} threads: a fork would lose all but one"
    connection = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 16)
        if not message:
            return None
        program: dict[str, Any] = json.loads(message)
        told, tells = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid != 0:
                os.write(tells, str(pid).encode())
                os._exit(0)  # the client adopts the program: see torch_process
            connection.close()
            os.close(told)
            os.close(tells)
            become(program, files)
            return list(program["command"])
        os.waitpid(between, 0)
        connection.send(os.read(told, 32))
        for fd in (told, tells, *files):
            os.close(fd)


def become(program: dict[str, Any], files: list[int]) -> None:
    """Gives this process the program's environment, working folder and open files."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD) for fd in files]
    for fd in files:
        os.close(fd)
    for fd, target in zip(high, program["targets"], strict=True):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update(program["env"])
    os.chdir(program["folder"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]


def run(command: list[str]) -> None:
    """Runs `python *command`."""
    what, *arguments = command
    if what == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    source, file = (arguments.pop(0), "<string>") if what == "-c" else (Path(what).read_bytes(), what)
    sys.argv = [what, *arguments]
    sys.path[0] = "" if what == "-c" else str(Path(what).parent)
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__dict__.update(__file__=file, __builtins__=__builtins__)
    exec(compile(source, file, "exec"), module.__dict__)


if __name__ == "__main__":
    _command = main()
    if _command is not None:
        run(_command)  # not inside main(): tracebacks look like an ordinary program's
