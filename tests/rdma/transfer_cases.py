"""Cases in the guest: results of jobs by RDMA."""

from __future__ import annotations

import json
from pathlib import Path

from rdma.pair import PairJob, Traffic, ip, traffic
from rdma.sums_program import PAYLOAD_BYTES

SUMS = Path(__file__).with_name("sums_program.py")
PACKET_BYTES = 4096
SEGMENT_BYTES = 4160
# Each rank sends and gets all, whoever adds it up.
MOVED_BYTES = 2 * 2 * PAYLOAD_BYTES


def sums(folder: Path, transport: str) -> tuple[list[object], Traffic]:
    """Returns the sums of both ranks, and the traffic."""
    before = traffic()
    with PairJob(folder, transport=transport) as job:
        job.start_all(program=SUMS)
        job.end_all()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)], traffic() - before


def case_sums_are_those_of_tcp_and_go_by_rdma(folder: Path) -> None:
    folder.mkdir()
    ip("link", "set", "lo", "mtu", "4200")  # segments are not larger than on the wire
    by_rdma, rdma_sent = sums(folder / "rdma", "rdma")
    by_tcp, tcp_sent = sums(folder / "tcp", "tcp")
    assert by_rdma[0] == by_rdma[1] == by_tcp[0] == by_tcp[1]
    assert rdma_sent.rdma_packets * PACKET_BYTES >= MOVED_BYTES, rdma_sent
    assert rdma_sent.tcp_segments * SEGMENT_BYTES < MOVED_BYTES / 8, rdma_sent
    assert tcp_sent.rdma_packets == 0, tcp_sent
    assert tcp_sent.tcp_segments * SEGMENT_BYTES >= MOVED_BYTES, tcp_sent
