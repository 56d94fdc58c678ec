"""Results of a training, as all examples report them."""

from __future__ import annotations

import hashlib
import math

import numpy as np

import byteps
from byteps.numpy import push_pull

DIGEST_BYTES = 32


def report(accuracy: float, images: int, seconds: float, parameters: bytes, waiting_s: float = math.nan) -> int:
    """Prints results and what communication cost, on rank 0. All ranks call.

    Args:
        accuracy: of all ranks.
        images: that all ranks have seen.
        seconds: that training took.
        parameters: of this rank's model, which is to be the same on all ranks.
        waiting_s: of `seconds`, for communication, in the thread that trains; NaN where that is not
            known.

    Returns:
        The exit code: 0 only if the ranks' parameters are the same, bit for bit.
    """
    rows = _of_all_ranks([*_costs(waiting_s / seconds), *hashlib.sha256(parameters).digest()])
    digests = [bytes(map(int, row[-DIGEST_BYTES:])).hex() for row in rows]
    same = len(set(digests)) == 1
    say(f"test accuracy {accuracy:.4f}, {images / seconds:,.0f} images/s in {seconds:.1f} s")
    say("rank  summed MB  push_pull GB/s  waiting %  SHA-256 of the parameters")
    for rank, ((summed_mb, gb_s, waiting), digest) in enumerate(zip(rows[:, :-DIGEST_BYTES], digests, strict=True)):
        percent = "-" if math.isnan(waiting) else f"{100 * waiting:.1f}"
        say(f"{rank:4} {summed_mb:10.1f} {gb_s:15.3f} {percent:>10}  {digest}")
    say("all ranks have the same parameters" if same else "ERROR: the ranks' parameters differ")
    return 0 if same else 1


def say(text: str) -> None:
    if byteps.rank() == 0:
        print(text, flush=True)


def _costs(waiting: float) -> tuple[float, float, float]:
    """Returns this rank's MB of tensors, GB/s while one was in flight, and `waiting`."""
    metrics = byteps.metrics()
    summed_mb = metrics["push_pull_bytes"] / 1e6  # also within a machine
    busy_us = metrics["busy_us"]
    return summed_mb, metrics["push_pull_bytes"] / busy_us / 1e3 if busy_us else 0.0, waiting


def _of_all_ranks(row: list[float]) -> np.ndarray:
    table = np.zeros((byteps.size(), len(row)))
    table[byteps.rank()] = row
    return push_pull(table, name="table of results", op=byteps.Sum)
