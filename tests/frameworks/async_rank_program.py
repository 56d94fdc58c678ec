"""A rank for tests of asynchronous training, controlled like support/rank_program.py.

The environment says whether, and with which staleness, it trains asynchronously. Its only weight
becomes larger by one in every step of every rank: it counts them. Prints "step N: weight W" after
each step.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count

import torch
from support.say import say
from torch import nn

import byteps.torch as bps
from byteps.errors import BytePSError

weight = nn.Parameter(torch.zeros(100_000))
steps_done = count(1)


def step() -> None:
    weight.grad = -torch.ones_like(weight)
    optimizer.step()
    values = set(weight.tolist())
    say(f"step {next(steps_done)}: weight {' and '.join(f'{value:g}' for value in sorted(values))}")


def steps() -> None:
    while True:
        step()


def settle() -> None:
    optimizer.settle()
    say(f"settled: weight {weight[0].item():g}")


WORDS = {
    "step": step,
    "steps": steps,
    "pause": sys.stdin.readline,  # returns when the test says so
    "linger": sys.stdin.read,
    "settle": settle,
    "die": lambda: os._exit(77),
}

bps.init()
try:
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)], op=bps.Sum)
    say("ready")
    for word in sys.argv[1:]:
        name, _, times = word.partition("*")
        for _ in range(int(times or 1)):
            WORDS[name]()
        say("did", word)
except BytePSError as error:
    say("raised", f"{time.monotonic():.3f}", type(error).__name__, str(error).replace("\n", " / "))
    sys.exit(3)
bps.shutdown()
