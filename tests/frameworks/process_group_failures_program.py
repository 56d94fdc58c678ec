"""A rank of torch.distributed that dies, or one that waits for it.

    python process_group_failures_program.py WHAT [STORE]

STORE as in process_group_program.py. The last rank dies.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from frameworks.process_group_program import say, start, sum_of_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS_BEFORE = 5


def is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def die() -> None:
    say("dies")
    os.kill(os.getpid(), signal.SIGKILL)


class Dies(nn.Module):
    """The last rank dies in backward, while gradients of later layers are in flight."""

    passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes > STEPS_BEFORE and is_last():
            x.register_hook(lambda _: die())
        return x


def train(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = wrap(nn.Sequential(nn.Linear(64, 256), Dies(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(1000):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()


def shard(model: nn.Module, **options: object) -> nn.Module:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def in_ddp(store: str | None) -> None:
    start(store)
    train(lambda model: DistributedDataParallel(model, bucket_cap_mb=0.01))


def in_ddp_with_a_hook_in_cpp(store: str | None) -> None:
    start(store)

    def wrap(model: nn.Module) -> nn.Module:
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        return ddp

    train(wrap)


def in_fsdp2(store: str | None) -> None:
    start(store)
    train(shard)


def in_hsdp(store: str | None) -> None:
    """Ranks 0 and 1 are replicas of the shards of ranks 2 and 3."""
    start(store)
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    train(lambda model: shard(model, mesh=mesh))


def in_the_trainer(store: str | None) -> None:
    """Trains with Hugging Face's Trainer, which makes the process group itself."""
    sys.path.append(str(Path(__file__).parents[2] / "examples/torch"))
    from gpt2_parts import StdlibText, make_model
    from transformers import Trainer, TrainingArguments

    start(store)
    options = type("Options", (), {"context": 16, "width": 16, "layers": 2})
    model = make_model(options)
    model.transformer.wpe = nn.Sequential(model.transformer.wpe, Dies())
    arguments = TrainingArguments("unused", max_steps=1000, save_strategy="no", report_to=[], use_cpu=True)
    Trainer(model, arguments, train_dataset=StdlibText(options.context, limit_bytes=1 << 20)).train()


def group_with_the_last() -> dist.ProcessGroup:
    return dist.new_group([0, dist.get_world_size() - 1])


def before_a_subgroup(store: str | None) -> None:
    """The last rank dies before the group has a job."""
    start(store)
    sum_of_ranks()
    group = group_with_the_last()
    if is_last():
        die()
    if dist.get_rank() == 0:
        sum_of_ranks(group)


def in_a_subgroup(store: str | None) -> None:
    start(store)
    group = group_with_the_last()
    if dist.get_rank() == 0 or is_last():
        sum_of_ranks(group)
    if is_last():
        die()
    if dist.get_rank() == 0:
        sum_of_ranks(group)


def one_rank_is_missing(store: str) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Else the time could be up before the slower one has begun.
    ready = dist.FileStore(f"{store}.ready", size)
    ready.set(str(rank), "")
    ready.wait([str(other) for other in range(size)], timedelta(seconds=60))
    start(store, timeout_s=3)
    leave_out_the_last()


def one_rank_is_missing_in_a_group_with_a_timeout(store: str | None) -> None:
    """A group of all ranks."""
    start(store)
    group = dist.new_group(timeout=timedelta(seconds=3))
    sum_of_ranks(group)
    leave_out_the_last(group)


def one_rank_is_missing_after_a_new_timeout(store: str | None) -> None:
    start(store)
    sum_of_ranks()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))
    leave_out_the_last()


def leave_out_the_last(group: dist.ProcessGroup | None = None) -> None:
    """The last rank skips a collective, and stays until the others have timed out."""
    store_of_group = dist.distributed_c10d._get_default_store()
    if is_last():
        store_of_group.set_timeout(timedelta(seconds=60))
        store_of_group.get("given up")
    else:
        try:
            sum_of_ranks(group)
        finally:
            store_of_group.set("given up", "")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else None)
