"""A training step of a transformer with 100 million parameters, all ranks on GPU 0.

    torchrun --nproc-per-node 2 benchmarks/gpu/transformer.py ddp gloo
    torchrun --nproc-per-node 2 benchmarks/gpu/transformer.py ddp byteps
    torchrun --nproc-per-node 2 benchmarks/gpu/transformer.py optimizer byteps
    torchrun --nproc-per-node 2 benchmarks/gpu/transformer.py fsdp2 gloo|byteps
    torchrun --nproc-per-node 2 benchmarks/gpu/transformer.py alone gloo  # no communication

Before it measures, it compares the gradients of DDP with those that gloo averages on the CPU.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20_000, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 12)
        self.head = nn.Linear(768, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(tokens)))


def main() -> None:
    how, backend = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 12
    if backend == "byteps":
        import byteps.torch as bps
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:gloo" if backend == "gloo" else "byteps")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    plain = Model().cuda()
    count = sum(p.numel() for p in plain.parameters())
    model: nn.Module = plain
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(plain)
    elif how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in plain.layers.layers:
            fully_shard(layer)
        fully_shard(plain)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if how == "optimizer":
        bps.init()
        optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
    torch.manual_seed(rank)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(20_000, (8, 128), device="cuda"), torch.randint(100, (8 * 128,), device="cuda")

    def backward(of: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> None:
        nn.functional.cross_entropy(of(data[0]).view(-1, 100), data[1]).backward()

    if how == "ddp":
        check = dist.new_group(backend="gloo")
        for _ in range(3):
            data = batch()
            backward(plain, data)  # without DDP
            local = [p.grad.cpu() for p in plain.parameters()]
            for grad in local:
                dist.all_reduce(grad, group=check)
            for p in plain.parameters():
                p.grad = None
            backward(model, data)
            worst = max(
                float((p.grad.cpu() - grad / size).norm() / (grad / size).norm().clamp(min=1e-12))
                for p, grad in zip(plain.parameters(), local, strict=True)
            )
            if not worst < 1e-3:
                raise SystemExit(f"{backend}: gradients differ from the average by {worst}")
            optimizer.zero_grad()
    times = []
    for step in range(steps):
        data = batch()
        torch.cuda.synchronize()
        start = time.perf_counter()
        backward(model, data)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if step >= 3:
            times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 1e9
    if rank == 0:
        print(
            f"transformer: {how} {backend}: {size} ranks, {count / 1e6:.0f} M parameters: median step "
            f"{statistics.median(times) * 1e3:.1f} ms (least {min(times) * 1e3:.1f}), {peak:.1f} GB",
            flush=True,
        )
    total = sum(
        float(p.detach().to_local().float().abs().sum() if hasattr(p, "to_local") else p.detach().float().abs().sum())
        for p in model.parameters()
    )
    print(f"rank {rank}: sum of weights {total!r}", flush=True)
    if how == "optimizer":
        bps.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
