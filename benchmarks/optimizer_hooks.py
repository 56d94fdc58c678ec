"""What DistributedOptimizer adds to each parameter's share of a training step, without any communication (size 1).

    python benchmarks/optimizer_hooks.py [--parameters 500] [--rounds 60] [--json]

Rounds of the plain and of the wrapped optimizer alternate, so that both see the same load on the machine. Medians of
CPU time are compared, because nothing waits here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

import byteps.torch as bps

STEPS_PER_ROUND = 3


class Many(torch.nn.Module):
    """Many small parameters, so that what is done for each of them shows."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(4)) for _ in range(count))

    def forward(self) -> torch.Tensor:
        return torch.stack([part.sum() for part in self.parts]).sum()


class Contender:
    """A model with its optimizer, and how long its steps took."""

    def __init__(self, count: int, distributed: bool) -> None:
        self.model = Many(count)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        if distributed:
            self.optimizer = bps.DistributedOptimizer(self.optimizer, self.model.named_parameters())
        self.step_us: list[float] = []

    def round(self) -> None:
        begin = time.process_time()
        for _ in range(STEPS_PER_ROUND):
            self.optimizer.zero_grad()
            self.model().backward()
            self.optimizer.step()
        self.step_us.append((time.process_time() - begin) / STEPS_PER_ROUND * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the optimizer's hooks at size 1.")
    parser.add_argument("--parameters", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bps.init()
    torch.set_num_threads(1)
    plain, wrapped = (Contender(options.parameters, distributed) for distributed in (False, True))
    for contender in (plain, wrapped) * options.rounds:
        contender.round()
    plain_us, wrapped_us = (statistics.median(c.step_us) / options.parameters for c in (plain, wrapped))
    result = {
        "parameters": options.parameters,
        "plain_us": round(plain_us, 2),
        "wrapped_us": round(wrapped_us, 2),
        "added_us": round(wrapped_us - plain_us, 2),
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"per parameter: plain {plain_us:.2f} us, wrapped {wrapped_us:.2f} us, added {result['added_us']:.2f} us")


if __name__ == "__main__":
    main()
