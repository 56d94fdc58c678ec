"""The end of a training of tests/integration/lost_servers_rank.py, in which a test has ended something."""

from __future__ import annotations

import re
from pathlib import Path

from support.cluster import Cluster
from support.hosts import Hosts

PROGRAM = Path(__file__).parents[1] / "integration" / "lost_servers_rank.py"


def stop_until_lost(cluster: Cluster, number: int) -> None:
    """Stops a server until training goes on without it, and lets it go on: it must end by itself."""
    server = cluster[f"server {number}"]
    server.stop()
    cluster["rank 0"].wait_for("training goes on without this server")
    server.go_on()
    assert server.end() == 1, server.describe()


def end_of(cluster: Cluster | Hosts, *, workers: int = 3, deadline_s: float = 120) -> tuple[str, int]:
    """Returns the digest, which is the same on all ranks, and how many servers rank 0 has lost."""
    found = []
    for rank in range(workers):
        member = cluster[f"rank {rank}"]
        assert member.end(deadline_s) == 0, member.describe()
        match = re.search(r"sha ([0-9a-f]{64}) servers lost (\d+)", member.output)
        assert match is not None, member.describe()
        found.append((match[1], int(match[2])))
    assert len({digest for digest, _ in found}) == 1, found
    return found[0]
