"""The bound of one machine, a rank of it: python -m benchmarks.peers.memory_rank.

However ranks of one machine sum M bytes in place, each rank's M bytes must be read from its memory
and M bytes of sums written to it. A step does that and nothing else, in all ranks at once: it
passes once over the array, in place (each word is read and written back), or copies it to another
one, whichever `how` says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.harness.rank import serve


def main() -> None:
    """Entry point."""
    arrays: dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}

    def step(request: Mapping[str, Any]) -> None:
        words = request["bytes"] // 4
        if words not in arrays:
            arrays[words] = (np.ones(words, np.float32), np.ones(words, np.float32))
        one, other = arrays[words]
        for _ in range(max(1, request["calls"])):
            if os.environ["BENCH_HOW"] == "copy":
                np.copyto(other, one)
            else:
                np.negative(one, out=one)

    serve(int(os.environ["BENCH_RANK"]), step)


if __name__ == "__main__":
    main()
