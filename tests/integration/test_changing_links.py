"""Roots move when a link of a running job becomes slower.

How they move back is tested in virtual time (tests/cpp/protocol/link_speeds_test.cc, bps_sim): it
takes tries, which become rare where processors are busy, as they are beside other tests.
"""

from __future__ import annotations

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
def test_roots_move_away_from_a_slow_link(tmp_path: Path, servers: int, changing: int) -> None:
    env = {"BYTEPS_NIC_MBPS": "0"}
    with Lab([MBPS] * (3 + servers)) as lab, Hosts(tmp_path, lab, 3, 1, servers, env) as hosts:
        hosts.start_all(program=PROGRAM)
        ranks = [hosts[f"rank {rank}"] for rank in range(3)]
        for rank in ranks:
            rank.wait_for("waits")
        lab.set_rate(changing, MBPS / 5)
        ranks[0].wait_for(f"slower network cards: host{changing}: ")
        for rank in ranks:
            rank.wait_for("moved 1")
        lab.set_rate(changing, MBPS)
        ranks[0].let_go()
        hosts.end_all()
