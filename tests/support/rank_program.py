"""A rank for tests, which runs the words of its command line as actions and prints results.

    python rank_program.py WORD... [then WORD...]

WORD*N: so many times. Prints "did WORD" after each, and "raised TIME TYPE MESSAGE" for an exception
of byteps, which skips to the words after "then" and makes it end with code 3.
"""

from __future__ import annotations

import itertools
import select
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from support.say import say

import byteps as bps
from byteps.errors import BytePSError
from byteps.ops import declare_buffer

GRADIENTS = {f"layer{i}": np.ones(size, np.float32) for i, size in enumerate((100, 1 << 16, 1 << 19))}
# Several times what fits into the memory that is lent at a time.
LARGE = {f"large{i}": np.ones(1 << 21, np.float32) for i in range(3)}


abandoned: list[bps.Handle] = []  # handle of contribute()
fresh = itertools.count()  # numbers of names that were not used yet


def step() -> None:
    """Runs a training step."""
    handles = [bps.push_pull_async(gradient, name=name, op=bps.Sum) for name, gradient in GRADIENTS.items()]
    for handle in handles:
        assert (bps.synchronize(handle) == bps.size()).all()


def contribute() -> None:
    """Starts a step without waiting for it, so that other ranks may get their sums."""
    for name, gradient in GRADIENTS.items():
        abandoned.append(bps.push_pull_async(gradient, name=name, op=bps.Sum))


def flood() -> None:
    """All the time large tensors are under way."""
    while True:
        handles = [bps.push_pull_async(gradient, name=name, op=bps.Sum) for name, gradient in LARGE.items()]
        for handle in handles:
            bps.synchronize(handle)
        say("did flood")


def name_many() -> None:
    """The scheduler has to remember 20 MB of names."""
    for number in range(20_000):
        declare_buffer(str(number).ljust(1000, "."), "float32", 4)
    step()


def use_names_once() -> None:
    """Reduces tensors whose names no later call uses, of many sizes."""
    for _ in range(100):
        numbers = [next(fresh) for _ in range(40)]
        handles = [
            bps.push_pull_async(np.ones(1 + n % 2000, np.float32), name=f"once {n}", op=bps.Sum) for n in numbers
        ]
        for handle in handles:
            assert (bps.synchronize(handle) == bps.size()).all()


def receive_much() -> None:
    """Rank 0 has what it wants at once, and leaves."""
    values = bps.broadcast(np.full(12 << 20, bps.rank() == 0, np.uint8), 0, "much")
    assert values.all()


def leave() -> None:
    say("leaves")
    bps.shutdown()


def small_step() -> None:
    assert bps.push_pull(np.ones(4), False, "small")[0] == bps.size()


def steps() -> None:
    while True:
        step()
        say("did step")


def steps_until_told() -> None:
    """Runs small steps until rank 0 is told to go on, and tells the other ranks."""
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
    "contribute": contribute,
    "flood": flood,
    "name_many": name_many,
    "use_names_once": use_names_once,
    "leave": leave,
    "receive_much": receive_much,
    "steps_until_told": steps_until_told,
    "barrier": bps.barrier,
    "pause": sys.stdin.readline,  # waits for the test
    "linger": sys.stdin.read,  # waits until the test continues it
    "shutdown": bps.shutdown,
}


def carry_out(plan: Sequence[str]) -> bool:
    """False if an exception of byteps has ended it."""
    for word in plan:
        name, _, count = word.partition("*")
        try:
            for _ in range(int(count or 1)):
                WORDS[name]()
        except BytePSError as error:
            say("raised", f"{time.monotonic():.3f}", type(error).__name__, str(error).replace("\n", " / "))
            return False
        say("did", word)
    return True


def main() -> int:
    plan = sys.argv[1:]
    end = plan.index("then") if "then" in plan else len(plan)
    if carry_out(plan[:end]):
        return 0
    carry_out(plan[end + 1 :])
    return 3


if __name__ == "__main__":
    sys.exit(main())
