"""A rank that trains for some steps, and writes what came of them as JSON to rankN.json.

Arguments: a folder for the result, and how many steps. The result: the metrics, a digest of all
sums, whose bits depend on their order, and the plan (factor of partitions, credit) at the end of
every step.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import byteps as bps

SHAPES = {"embedding": (1500, 400), "layer": (300, 301), "bias": (17,)}


def step(number: int, digest: hashlib._Hash) -> None:
    """Does what backward and an optimizer do: starts all gradients, then waits for each."""
    random = np.random.default_rng((number, bps.rank()))
    gradients = {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    handles = [bps.push_pull_async(gradient, name=name) for name, gradient in gradients.items()]
    for handle in handles:
        digest.update(np.asarray(bps.synchronize(handle)).tobytes())


def plan() -> tuple[float, float]:
    metrics = bps.metrics()
    return metrics["partition_factor"], metrics["credit_bytes"]


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    bps.init()
    digest = hashlib.sha256()
    plans = []
    for number in range(steps):
        step(number, digest)
        plans.append(plan())
    result = {"digest": digest.hexdigest(), "metrics": bps.metrics(), "plans": plans}
    (folder / f"rank{bps.rank()}.json").write_text(json.dumps(result))
    bps.shutdown()


if __name__ == "__main__":
    main()
