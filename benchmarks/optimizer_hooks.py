"""Cost of DistributedOptimizer by parameter and step: Python and core, without waiting.

    python benchmarks/optimizer_hooks.py [--ranks 2] [--parameters 500] [--rounds 40] [--json]

Each rank trains the same model of many tiny parameters with a plain optimizer and with wrapped
ones, in turns, so that all see the same load on the machine. What is compared is CPU time of the
thread that trains: it has the hooks, the hand-over to the core and the way back, and a thread that
waits uses none. Medians of all rounds, of the slowest rank.

Two numbers for each variant: with a core that does nothing, in a job that looks like one of two
ranks, which is what Python costs and what the goals are about (15 us, 8 us with groups); and with
the real core and so many ranks, where every push_pull of 16 bytes may wake the core's sleeping
thread, and the ranks take the processors from each other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

import byteps.torch as bps
from byteps.nodes import LocalNode
from byteps.runtime import current_job

STEPS_PER_ROUND = 3
VARIANTS: dict[str, dict[str, object] | None] = {
    "plain": None,
    "each alone": {},
    "each alone, wait in step": {"sync": "step"},
    "groups": {"groups": 8},
    "groups, gradients kept": {"groups": 8},
}


class Many(torch.nn.Module):
    """A model with many small parameters, which shows the cost for each of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(4)) for _ in range(count))

    def forward(self) -> torch.Tensor:
        return torch.stack([part.sum() for part in self.parts]).sum()


class Contender:
    """A model with its optimizer, and how long its steps took."""

    def __init__(self, count: int, name: str) -> None:
        self.model = Many(count)
        self.keeps_gradients = "kept" in name
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        options = VARIANTS[name]
        if options is not None:
            self.optimizer = bps.DistributedOptimizer(self.optimizer, self.model.named_parameters(), **options)
        self.step_us: list[float] = []

    def round(self) -> None:
        begin = time.thread_time()
        for _ in range(STEPS_PER_ROUND):
            self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
            self.model().backward()
            self.optimizer.step()
        self.step_us.append((time.thread_time() - begin) / STEPS_PER_ROUND * 1e6)


def measure(parameters: int, rounds: int) -> dict[str, float]:
    """Microseconds for each parameter, by variant, of the slowest rank."""
    contenders = {name: Contender(parameters, name) for name in VARIANTS}
    for contender in contenders.values():
        contender.round()
        contender.step_us.clear()  # a first step has more to do
    for _ in range(rounds):
        for contender in contenders.values():
            bps.barrier()
            contender.round()
    medians = torch.tensor([statistics.median(c.step_us) / parameters for c in contenders.values()])
    return dict(zip(contenders, bps.push_pull_inplace(medians, op=bps.Max, name="medians").tolist(), strict=True))


class IdleCore(LocalNode):
    """A core whose push_pulls are done at once, and change nothing."""

    size = 2

    def push_pull(self, *_: object) -> int:
        return 0


def measure_python(parameters: int, rounds: int) -> dict[str, float]:
    """Runs `measure` with a core that does nothing, in a job of one rank."""
    job = current_job()
    node, job.node, job.size = job.node, IdleCore(), IdleCore.size
    job.in_flight.node = job.node
    try:
        return measure(parameters, rounds)
    finally:
        job.node = job.in_flight.node = node
        job.size = node.size


def run_rank(options: argparse.Namespace) -> None:
    bps.init()
    torch.set_num_threads(1)
    run = measure_python if bps.size() == 1 else measure
    found = run(options.parameters, options.rounds)
    if bps.rank() == 0:
        added = {name: round(us - found["plain"], 2) for name, us in found.items() if name != "plain"}
        result = {"ranks": bps.size(), "plain_us": round(found["plain"], 2), "added_us": added}
        print(json.dumps(result) if options.json else described(result), flush=True)
    bps.shutdown()


def described(result: dict[str, Any]) -> str:
    core = "a core that does nothing" if result["ranks"] == 1 else f"the core, {result['ranks']} ranks"
    lines = [f"with {core}: CPU time for each parameter and step, beyond the plain optimizer's {result['plain_us']} us"]
    return "\n".join(lines + [f"  {name:<26} {us:6.2f} us" for name, us in result["added_us"].items()])


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of DistributedOptimizer for each parameter and step.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--parameters", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        run_rank(options)
        return 0
    run_rank(options)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
    return subprocess.call([*torchrun, *sys.argv], env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    sys.exit(main())
