"""Ranks leave and join: training goes on in jobs of 1, 2, 3 and 1 ranks.

    python resume_program.py RANK FRAMEWORK FOLDER

Rank r comes with the job of r + 1 ranks, and all but rank 0 end after the third. Who was there
before keeps its model, optimizers and functions; who comes makes its own. After each job the ranks'
weights are those of one process that has learned from all batches. `frameworks.resume_FRAMEWORK`
has the Trainer:

    Trainer(distributed)  plain models and optimizers
    .broadcast()          makes them those of rank 0
    .distribute()         has them train with the other ranks; not if they are not `distributed`
    .step(x, y)           one step; on this rank's share of the batch, or on all of it
    .weights()            as arrays
    .before()             what leaves traces in this process: counters that are not to matter
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

JOBS = (1, 2, 3, 1)
STEPS = 3
BATCH = 12


def batches(job: int) -> Any:
    import numpy as np

    random = np.random.default_rng(job)
    for _ in range(STEPS):
        yield random.normal(size=(BATCH, 6)).astype(np.float32), random.normal(size=(BATCH, 2)).astype(np.float32)


def check(bps: Any, job: int, trainer: Any, alone: Any) -> None:
    """Whether all ranks have the weights that rank 0 has, and that one process would have."""
    import numpy as np

    mine = trainer.weights()
    for place, (own, roots) in enumerate(zip(mine, bps.broadcast_object(mine, 0), strict=True)):
        np.testing.assert_array_equal(own, roots, f"job {job}, weight {place}")
    for place, (own, expected) in enumerate(zip(mine, alone.weights() if alone else mine, strict=True)):
        np.testing.assert_allclose(own, expected, rtol=0, atol=2e-5, err_msg=f"job {job}, weight {place}")


def main(rank: int, framework: str, folder: Path) -> None:
    module = importlib.import_module(f"frameworks.resume_{framework}")
    # Waits until other ranks have left or failed.
    if rank > 1 and not (folder / f"gate{rank}").read_text():
        return
    bps = module.bps
    trainer = alone = None
    for job, ranks in enumerate(JOBS):
        if rank >= ranks:
            if trainer is not None:
                break
            continue
        if trainer is None:
            bps.init()
        else:
            bps.suspend()
            if rank == 0 and ranks > 2:
                (folder / f"gate{ranks - 1}").write_text("go on")
            bps.resume(ranks, 0, rank)
        assert (bps.size(), bps.rank()) == (ranks, rank)
        is_new = trainer is None
        if is_new:
            if rank == 0:
                module.Trainer.before()
            trainer = module.Trainer(distributed=True)
            alone = module.Trainer(distributed=False) if rank == 0 else None
        trainer.broadcast()
        if is_new:
            trainer.distribute()
        for x, y in batches(job):
            rows = BATCH // ranks
            trainer.step(x[rank * rows : (rank + 1) * rows], y[rank * rows : (rank + 1) * rows])
            if alone is not None:
                alone.step(x, y)
        check(bps, job, trainer, alone)
        print(f"job {job} is done", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    except BaseException:
        if sys.argv[1] != str(max(JOBS) - 1):
            with suppress(OSError):  # nobody waits any more, or not yet
                os.close(os.open(Path(sys.argv[3], f"gate{max(JOBS) - 1}"), os.O_WRONLY | os.O_NONBLOCK))
        raise
