"""A rank of a program that trains with the backend byteps without importing byteps.

python torch_plugin_program.py WHAT [OPTION]
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn


def check(ranks: int) -> None:
    assert dist.get_backend() == "byteps" and dist.get_world_size() == ranks
    dist.all_reduce(tensor := torch.ones(3))
    assert (tensor == ranks).all()
    print("all is well", flush=True)


def process_group(_: str) -> None:
    assert dist.is_backend_available("byteps")
    assert not any(name.startswith(("byteps.torch.", "byteps._core")) for name in sys.modules)
    for _again in range(2):
        dist.init_process_group("byteps")
        check(2)
        dist.destroy_process_group()
    import byteps.torch as bps

    assert not bps.is_initialized()


def hugging_face(device: str) -> None:
    """Accelerate and the Trainer, which share a process group."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.layer(x) - labels).square().mean()}

    accelerator = Accelerator(cpu=device == "cpu", kwargs_handlers=[InitProcessGroupKwargs(backend="byteps")])
    assert accelerator.num_processes == 2
    assert isinstance(accelerator.prepare(nn.Linear(3, 3)), nn.parallel.DistributedDataParallel)
    accelerator.state._reset_state(reset_partial_state=True)
    dist.destroy_process_group()
    arguments = TrainingArguments(
        "unused", ddp_backend="byteps", use_cpu=device == "cpu", max_steps=3, save_strategy="no", report_to=[]
    )
    generator = torch.Generator().manual_seed(1)
    examples = [{"x": torch.randn(3, generator=generator), "labels": torch.zeros(1)} for _ in range(64)]
    trainer = Trainer(Model(), arguments, train_dataset=examples)
    trainer.train()
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in trainer.model.parameters()])
    everyones = [torch.empty_like(weights) for _ in range(2)]
    dist.all_gather(everyones, weights)
    assert torch.equal(*everyones)
    check(2)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")
