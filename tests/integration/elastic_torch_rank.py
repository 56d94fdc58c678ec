"""Trains a small model in an elastic job. Argument: number of steps."""

from __future__ import annotations

import hashlib
import os
import sys
import time

import torch

import byteps.torch as bps

bps.init()
torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(256, 10)
targets = inputs @ torch.randn(10, 1)
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = bps.elastic.TorchState(model=model, optimizer=optimizer, step=0)


@bps.elastic.run
def train(state: bps.elastic.TorchState) -> None:
    print(f"pid {os.getpid()} begins at step {state.step}", flush=True)
    while state.step < int(sys.argv[1]):
        optimizer.zero_grad()
        batch = torch.randint(256, (32,))
        torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        state.step += 1
        print(f"step {state.step}", flush=True)
        time.sleep(0.01)
        state.commit()


train(state)
digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()[:16]
print(f"done as rank {bps.rank()} of {bps.size()}: {digest}", flush=True)
