"""Roots move when a link of a running job becomes slower, and again when it is as fast as before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.hosts import Hosts
from support.job import ROOT

from benchmarks.lab import Lab, why_impossible

IMPOSSIBLE = why_impossible()
pytestmark = pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"no lab on this machine: {IMPOSSIBLE}")

PROGRAM = ROOT / "tests/support/follow_links.py"
MBPS = 100


@pytest.mark.parametrize(("servers", "changing"), [(0, 1), (1, 3)])
def test_roots_move_away_from_a_slow_link_and_back(tmp_path: Path, servers: int, changing: int) -> None:
    env = {"BYTEPS_NIC_MBPS": "0"}
    with Lab([MBPS] * (3 + servers)) as lab, Hosts(tmp_path, lab, 3, 1, servers, env) as hosts:
        hosts.start_all("1", "2", program=PROGRAM)
        for change, rate in enumerate((MBPS / 5, MBPS), 1):
            for rank in range(3):
                hosts[f"rank {rank}"].wait_for("waits", change)
            lab.set_rate(changing, rate)
            for rank in range(3):
                hosts[f"rank {rank}"].wait_for("moved", change)
        hosts.end_all()
        log = hosts["rank 0"].describe()
    assert re.search(rf"slower network cards: host{changing}: \d+ Mbit/s so far, now \d+", log), log
    assert re.search(rf"faster network cards: host{changing}: \d+ Mbit/s so far, now \d+", log), log
