"""Ends the processes of a lab whose owner has died: python keeper.py OWNER_PID NET_FD...

It waits until its standard input ends or its owner does, kills every process in the given network
namespaces, and ends. It holds the namespaces open, so that nobody else's can get their inode
numbers.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

_PAUSE_S = 0.01  # between looks for processes that were being started, or are on their way out
_PATIENCE_S = 10.0


def processes_in(network_inodes: set[int]) -> list[int]:
    """Pids of all processes in these network namespaces but our own. Zombies are in none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (entry / "ns" / "net").stat().st_ino in network_inodes:
                    found.append(int(entry.name))
    return found


def kill_all_in(network_inodes: set[int]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while (pids := processes_in(network_inodes)) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def main() -> None:
    """Entry point."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    owner, *descriptors = map(int, sys.argv[1:])
    events = select.poll()
    events.register(sys.stdin, select.POLLIN)
    with contextlib.suppress(ProcessLookupError):
        events.register(os.pidfd_open(owner), select.POLLIN)
        events.poll()
    kill_all_in({os.fstat(descriptor).st_ino for descriptor in descriptors})


if __name__ == "__main__":
    main()
