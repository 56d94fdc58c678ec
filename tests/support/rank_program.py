"""A rank for tests: does the words of its command line, one after the other, and says what comes of them.

    python rank_program.py WORD...

WORD*N: so many times. Prints "did WORD" after each, and "raised TIME TYPE MESSAGE" for an exception of byteps, which
ends it with code 3.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable

import numpy as np

import byteps as bps
from byteps.errors import BytePSError

GRADIENTS = {f"layer{i}": np.ones(size, np.float32) for i, size in enumerate((100, 1 << 16, 1 << 19))}


def say(*what: object) -> None:
    print(*what, flush=True)


def step() -> None:
    """What a training step asks for."""
    handles = [bps.push_pull_async(gradient, name=name, op=bps.Sum) for name, gradient in GRADIENTS.items()]
    for handle in handles:
        assert (bps.synchronize(handle) == bps.size()).all()


def small_step() -> None:
    assert bps.push_pull(np.ones(4), False, "small")[0] == bps.size()


def steps() -> None:
    while True:
        step()
        say("did step")


def steps_until_told() -> None:
    """Small steps until rank 0 has been told to go on; as all ranks have to stop after the same one, it tells them."""
    count = 0
    while not bps.broadcast(np.array([bps.rank() == 0 and told()], np.uint8), 0, "told")[0]:
        small_step()
        count += 1
        if count == 1:
            say("first small step")
    say("small steps:", count)


def told() -> bool:
    return bool(select.select([sys.stdin], [], [], 0.05)[0])


WORDS: dict[str, Callable[[], object]] = {
    "init": bps.init,
    "step": step,
    "steps": steps,
    "steps_until_told": steps_until_told,
    "barrier": bps.barrier,
    "pause": sys.stdin.readline,  # until the test says so
    "shutdown": bps.shutdown,
}


def main() -> int:
    for word in sys.argv[1:]:
        name, _, count = word.partition("*")
        try:
            for _ in range(int(count or 1)):
                WORDS[name]()
        except BytePSError as error:
            say("raised", f"{time.monotonic():.3f}", type(error).__name__, str(error).replace("\n", " / "))
            return 3
        say("did", word)
    return 0


if __name__ == "__main__":
    sys.exit(main())
