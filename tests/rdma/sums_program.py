"""A rank that sums tensors of several kinds and writes digests of the sums to rankN.json."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

import byteps as bps

# Of elements: less than what goes through a ring, around that, parts of a megabyte on each server.
SIZES = (1, 1000, 4096, 16385, 120_001)
DTYPES = (np.float32, np.float16, np.int64, np.uint8)
ROUNDS = 2
PAYLOAD_BYTES = ROUNDS * sum(size * np.dtype(dtype).itemsize for size in SIZES for dtype in DTYPES)


def contribution(rank: int, size: int, dtype: type[np.generic], number: int) -> np.ndarray:
    return np.random.default_rng((rank, size, number)).uniform(0, 100, size).astype(dtype)


def main() -> None:
    bps.init()
    digests = {}
    for number in range(ROUNDS):
        handles = {
            f"{np.dtype(dtype).name} {size}": bps.push_pull_async(
                contribution(bps.rank(), size, dtype, number), name=f"{np.dtype(dtype).name} {size}", op=bps.Sum
            )
            for dtype in DTYPES
            for size in SIZES
        }
        for name, handle in handles.items():
            result = np.ascontiguousarray(bps.synchronize(handle))
            digests[f"{name} {number}"] = hashlib.sha256(result.tobytes()).hexdigest()
    Path(f"rank{bps.rank()}.json").write_text(json.dumps(digests))
    bps.shutdown()


if __name__ == "__main__":
    main()
