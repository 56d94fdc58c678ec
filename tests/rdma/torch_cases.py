"""Cases in the guest: training with PyTorch by RDMA."""

from __future__ import annotations

from pathlib import Path

from rdma.pair import PairJob, traffic
from support.torch_process import Forkserver

PROGRAM = Path(__file__).with_name("torch_program.py")
TORCH = Forkserver(imports=("torch", "byteps.torch"))  # shared by both jobs
MODEL_BYTES = 4 * (65 * 256 + 257 * 256 + 257 * 3)
STEPS = 4


def train(folder: Path, transport: str) -> set[str]:
    """Trains, and returns the digests of the ranks' weights."""
    with PairJob(folder, transport=transport, forkserver=TORCH) as job:
        job.start_all(program=PROGRAM)
        job.end_all()
    return {(folder / f"rank{rank}.txt").read_text() for rank in (0, 1)}


def case_weights_are_those_of_tcp(folder: Path) -> None:
    by_tcp = train(folder / "tcp", "tcp")
    before = traffic()
    by_rdma = train(folder / "rdma", "rdma")
    sent = traffic() - before
    assert by_rdma == by_tcp and len(by_rdma) == 1
    assert sent.rdma_packets * 4096 >= 2 * 2 * STEPS * MODEL_BYTES, sent
