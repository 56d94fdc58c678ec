"""A rank's side of the harness: it makes a step whenever the driver says so.

The driver listens on a Unix socket with a path, which reaches into every network namespace. A
message is a line of JSON. A rank first says {"rank": .., "pid": ..}; to {"calls": C, ...} it
answers {"begin": .., "end": ..}, seconds of the monotonic clock that all processes of a machine
share, plus what the step itself returns; to {} it leaves. A step without calls prepares and warms
up. The clock starts when the ranks have met at a barrier: requests reach ranks at different times,
on busy cores by more than a time slice.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

CONTROL = "BENCH_CONTROL"  # the environment variable with the socket's path

Step = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]


def serve(rank: int, step: Step, barrier: Callable[[], object] = lambda: None) -> None:
    """Makes steps until the driver wants no more.

    Args:
        rank: of this process among the contender's.
        step: does what the request says, `calls` times.
        barrier: returns when all ranks have called it; without one, ranks do not wait for each other.
    """
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(os.environ[CONTROL])
        requests = control.makefile("r", encoding="utf-8")
        _say(control, {"rank": rank, "pid": os.getpid()})
        for line in requests:
            request = json.loads(line)
            if not request:
                return
            barrier()
            begin = time.monotonic()
            result = step(request)
            _say(control, {"begin": begin, "end": time.monotonic(), **(result or {})})


def _say(control: socket.socket, message: Mapping[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")
