"""Minimum latency of two processes that sleep while they wait: wake_up_rank.py.

A call is one byte from rank 0 to rank 1 and one back, through Unix sockets. Each is woken once;
nothing is summed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.rank import CONTROL, serve


def main() -> None:
    """Entry point."""
    rank = int(os.environ["BENCH_RANK"])
    mine, other = (str(Path(os.environ[CONTROL]).with_name(f"wake-{each}")) for each in (rank, 1 - rank))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind(mine)

        def there_and_back() -> None:
            if rank == 0:
                link.sendto(b"x", other)
            link.recv(1)
            if rank == 1:
                link.sendto(b"x", other)

        def step(request: Mapping[str, Any]) -> None:
            for _ in range(request["calls"]):
                there_and_back()

        serve(rank, step, there_and_back)


if __name__ == "__main__":
    main()
