"""A rank whose program flushes denormals to zero before it joins; sums must not.

Threads inherit the flag. The program's own thread has it, so values are made and compared as bits.
"""

from __future__ import annotations

import torch

BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
SIZES = (5, 1 << 20)  # summed by one thread, and by several


def denormals(bits: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """`bits` times the smallest denormal."""
    return torch.full((size,), bits, dtype=BITS[dtype]).view(dtype)


def check(got: torch.Tensor, bits: int, what: object) -> None:
    found = got.view(BITS[got.dtype])
    assert (found == bits).all(), f"{what}: expected {bits}, got {found.unique()[:5].tolist()}"


def flushes() -> bool:
    smallest = denormals(2, 5, torch.float32)
    return bool(((smallest + smallest).view(torch.int32) == 0).all())


def main() -> None:
    if not torch.set_flush_denormal(True):
        print("cannot flush here")
        return
    import byteps.torch as bps

    bps.init()
    assert flushes()
    for dtype in BITS:
        for size in SIZES:
            for op, bits in ((bps.Sum, 8), (bps.Average, 4), (bps.Min, 2), (bps.Max, 6)):
                mine = denormals((2, 6)[bps.rank()], size, dtype)
                check(bps.push_pull(mine, op=op), bits, (dtype, size, op))
            check(bps.broadcast(denormals((2, 6)[bps.rank()], size, dtype), 1), 6, (dtype, size, "broadcast"))
    assert flushes(), "this thread is the program's"
    bps.shutdown()
    print("all is well")


if __name__ == "__main__":
    main()
