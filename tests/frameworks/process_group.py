"""The default process group of test jobs: backend byteps, on the job that the cases' runner has joined."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

import byteps.torch as bps


def start_process_group(backend: str = "byteps") -> None:
    """Creates the default group, once; ranks meet in a file that is named after the job."""
    if not dist.is_initialized():
        path = Path(tempfile.gettempdir()) / f"{os.environ['BYTEPS_JOB_ID']}.store"
        dist.init_process_group(
            backend,
            init_method=f"file://{path}",
            rank=bps.rank(),
            world_size=bps.size(),
            timeout=timedelta(seconds=60),
        )
