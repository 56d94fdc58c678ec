"""A rank that trains a small model with PyTorch and writes a digest to rankN.txt."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

import byteps.torch as bps

STEPS = 4
BATCH = 8


def main() -> None:
    bps.init()
    torch.manual_seed(bps.rank())  # initial weights differ and are broadcast
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 3))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named_parameters=model.named_parameters()
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    data = torch.Generator().manual_seed(bps.rank())
    for _ in range(STEPS):
        x = torch.randn(BATCH, 64, generator=data)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x[:, :3]).backward()
        optimizer.step()
    digest = hashlib.sha256()
    for weights in model.parameters():
        digest.update(weights.detach().numpy().tobytes())
    Path(f"rank{bps.rank()}.txt").write_text(digest.hexdigest())
    bps.shutdown()


if __name__ == "__main__":
    main()
