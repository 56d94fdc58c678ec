"""The hook for torch's DistributedDataParallel."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from frameworks.torch_ddp_training import momentum, plain_loop, trained_alone
from frameworks.torch_training import STEPS, assert_close, data, mlp, my_share
from support.expect import expect_error
from torch import nn

import byteps.torch as bps
from byteps.errors import InvalidArgumentError


@contextmanager
def process_group(backend: str = "gloo") -> Iterator[None]:
    folder = bps.broadcast_object(tempfile.mkdtemp() if bps.rank() == 0 else "")
    store = dist.FileStore(str(Path(folder) / "store"), bps.size())
    dist.init_process_group(backend, store=store, rank=bps.rank(), world_size=bps.size())
    try:
        yield
    finally:
        dist.destroy_process_group()


def trained_by_torch(state: object, hook: bool = True, **options: object) -> nn.Module:
    torch.manual_seed(1 + bps.rank())
    model = nn.parallel.DistributedDataParallel(mlp(), **options)
    if hook:
        model.register_comm_hook(state, bps.ddp_hook)
    optimizer = momentum(model)
    for number in range(STEPS):
        plain_loop(model, optimizer, *map(my_share, data(number)))
    return model.module


def case_hook_of_torch_ddp() -> None:
    expected = trained_alone(mlp, plain_loop, (6,), momentum)
    before = bps.metrics()["push_pulls"]
    with process_group():
        assert_close(expected, trained_by_torch(None))
        assert bps.metrics()["push_pulls"] >= before + STEPS
        small_buckets = {"bucket_cap_mb": 1e-4, "gradient_as_bucket_view": True}
        assert_close(expected, trained_by_torch(bps.DDPHookState("views"), **small_buckets))
        assert_close(expected, trained_by_torch(bps.DDPHookState("static"), static_graph=True))
        for compression, tolerance in ((bps.Compression.fp16, 1e-3), (bps.Compression.bf16, 1e-2)):
            state = bps.DDPHookState("compressed", compression)
            assert_close(expected, trained_by_torch(state), tolerance)


def case_wrong_use_of_the_hook() -> None:
    with process_group(), expect_error(InvalidArgumentError, "expected a DDPHookState"):
        trained_by_torch("fp16")
