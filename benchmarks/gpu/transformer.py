"""A training step of a transformer with 100 million parameters; all ranks use GPU 0.

    torchrun --nproc-per-node 2 benchmarks/gpu/transformer.py ddp gloo|byteps
    torchrun --nproc-per-node 2 benchmarks/gpu/transformer.py optimizer byteps
    torchrun --nproc-per-node 2 benchmarks/gpu/transformer.py fsdp2 gloo|byteps
    torchrun --nproc-per-node 2 benchmarks/gpu/transformer.py alone gloo   # no communication

Before it measures, "ddp" compares its gradients with averages that gloo has computed on the CPU.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

Tensor = torch.Tensor
WARM_UP, STEPS = 3, 12
WORDS, CLASSES, ROWS, LENGTH = 20_000, 100, 8, 128


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 12)
        self.head = nn.Linear(768, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.words(tokens)))
        return logits


def batch() -> tuple[Tensor, Tensor]:
    return torch.randint(WORDS, (ROWS, LENGTH), device="cuda"), torch.randint(CLASSES, (ROWS * LENGTH,), device="cuda")


def backward(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    nn.functional.cross_entropy(model(data[0]).view(-1, CLASSES), data[1]).backward()


def gradients(model: nn.Module) -> list[Tensor]:
    """Returns the gradients on the CPU, and deletes them."""
    found = [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return found


def check_gradients(plain: nn.Module, model: nn.Module) -> None:
    """Raises SystemExit if `model`, which wraps `plain`, does not average gradients."""
    group = dist.new_group(backend="gloo")
    for _ in range(3):
        data = batch()
        backward(plain, data)
        expected = gradients(plain)
        for total in expected:
            dist.all_reduce(total, group=group)
            total.div_(dist.get_world_size())
        backward(model, data)
        for grad, wanted in zip(gradients(plain), expected, strict=True):
            difference = float((grad - wanted).norm() / wanted.norm().clamp(min=1e-12))
            if not difference < 1e-3:
                raise SystemExit(f"a gradient of shape {tuple(grad.shape)} differs from the average by {difference}")


def prepare(how: str, plain: Model) -> tuple[nn.Module, torch.optim.Optimizer]:
    model: nn.Module = plain
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(plain)
        check_gradients(plain, model)
    elif how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in plain.layers.layers:
            fully_shard(layer)
        fully_shard(plain)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if how == "optimizer":
        import byteps.torch as bps

        bps.init()
        optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, optimizer


def measure(step: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(WARM_UP + STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times[WARM_UP:]


def main() -> None:
    how, backend = sys.argv[1:]
    if backend == "byteps":
        import byteps.torch
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:gloo" if backend == "gloo" else "byteps")
    torch.manual_seed(1)
    plain = Model().cuda()
    count = sum(parameter.numel() for parameter in plain.parameters())
    model, optimizer = prepare(how, plain)
    torch.manual_seed(dist.get_rank())

    def step() -> None:
        backward(model, batch())
        optimizer.step()
        optimizer.zero_grad()

    times = measure(step)
    if dist.get_rank() == 0:
        print(
            f"transformer: {how} {backend}: {dist.get_world_size()} ranks, {count / 1e6:.0f} M parameters: median step "
            f"{statistics.median(times) * 1e3:.1f} ms (least {min(times) * 1e3:.1f})",
            flush=True,
        )
    if how == "optimizer":
        byteps.torch.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
