"""The calls that make a training distributed.

Run: bpslaunch --nproc-per-node 2 -- python examples/torch/minimal.py.
"""

import torch

import byteps.torch as bps

bps.init()
torch.manual_seed(bps.rank())
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)

for _step in range(100):
    x = torch.randn(32, 10)  # this rank's share of the batch
    loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"rank {bps.rank()} of {bps.size()}: loss {loss.item():.4f}, sum of weights {model.weight.sum().item():.6f}")
