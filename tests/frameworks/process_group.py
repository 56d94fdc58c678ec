"""The default process group of test jobs, on the job that the runner of cases has joined."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import byteps.torch as bps


def start_process_group(backend: str = "byteps") -> None:
    """Creates the default group, once, with a store in a file that is named after the job."""
    if not dist.is_initialized():
        path = Path(tempfile.gettempdir()) / f"{os.environ['BYTEPS_JOB_ID']}.store"
        dist.init_process_group(
            backend,
            init_method=f"file://{path}",
            rank=bps.rank(),
            world_size=bps.size(),
            timeout=timedelta(seconds=60),
        )


def gloo_group() -> dist.ProcessGroup:
    return dist.new_group(backend="gloo")


def of_rank(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def mine(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return of_rank(dist.get_rank(), *shape, dtype=dtype)


def all_ranks(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [of_rank(rank, *shape, dtype=dtype) for rank in range(dist.get_world_size())]


def summed(*shape: int) -> torch.Tensor:
    return torch.stack(all_ranks(*shape)).sum(0)
