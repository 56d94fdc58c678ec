"""Results that ranks hold for each other are released when all have them (docs/failures.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.cluster import Cluster

pytestmark = pytest.mark.timeout(240)

PROGRAM = Path(__file__).parent / "released_results_rank.py"
WORKERS = 2
ALL = 48 * (4 << 20)  # bytes of the program's tensors


def test_results_of_names_that_are_used_once(tmp_path: Path) -> None:
    env = {"BYTEPS_TIMEOUT_S": "2", "BYTEPS_PLACEMENT": "ps", "BYTEPS_NIC_PROBE": "0"}
    with Cluster(tmp_path, WORKERS, servers=2, hosted=True, env=env) as cluster:
        for number in range(2):
            cluster.start_server(number)
        for rank in range(WORKERS):
            cluster.start_rank(rank, program=PROGRAM, env={"BYTEPS_MACHINE": f"machine-{rank}"})
        for rank in range(WORKERS):
            member = cluster[f"rank {rank}"]
            member.wait_for("later")
            match = re.search(r"held (\d+) bytes, later (-?\d+)", member.output)
            assert match is not None, member.describe()
            held, later = map(int, match.groups())
            assert held > 0.9 * ALL, "else the test shows nothing"
            assert later < 0.25 * ALL, member.describe()
        cluster["server 1"].kill()
        for rank in range(WORKERS):
            member = cluster[f"rank {rank}"]
            assert member.end(120) == 0, member.describe()
            assert "sums are right, servers lost 1" in member.output, member.describe()
