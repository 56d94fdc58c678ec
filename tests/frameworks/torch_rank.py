"""A rank that trains with DistributedOptimizer, for tests that look at it from outside.

Usage:
    python torch_rank.py train STEPS MODE
        prints "held OBJECTS DESCRIPTORS KIB" after a quarter of the steps and at the end
    python torch_rank.py die MODE MOMENT
        the last rank ends itself in the middle; the others print what they raise
    python torch_rank.py cycles COUNT
        COUNT times init, some steps, shutdown; prints as train does
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path

import torch
from support.say import say
from torch import nn

import byteps.torch as bps
from byteps.errors import BytePSError

MODES: dict[str, dict[str, object]] = {
    "step": {"sync": "step"},
    "backward": {"sync": "backward"},
    "groups": {"groups": 2},
    "groups-step": {"groups": 2, "sync": "step"},
    "sparse": {},
    "sparse-step": {"sync": "step"},
    "checked": {"nan_check": True, "find_unused_parameters": True, "groups": 2},
    "asynchronous": {"asynchronous": True, "staleness": 0},
}
RAISED = 3  # exit code


class Model(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 8, sparse=sparse)
        self.body = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.body(self.table(rows)).square().mean()


class Trainer:
    """Steps of a small model in one of the modes."""

    def __init__(self, mode: str) -> None:
        torch.manual_seed(0)
        self.model = Model(sparse=mode.startswith("sparse"))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.optimizer = bps.DistributedOptimizer(optimizer, self.model.named_parameters(), **MODES[mode])

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randint(0, 64, (16,))).backward()
        self.optimizer.step()


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def train(steps: int, mode: str) -> None:
    """Prints its resources after a quarter of the steps, with final sizes, and at the end."""
    bps.init()
    trainer = Trainer(mode)
    for number in range(1, steps + 1):
        trainer.step()
        if number == steps // 4:
            say("held", *held())
    say("held", *held())
    bps.shutdown()


def held() -> tuple[int, int, int]:
    """Returns numbers of Python objects, file descriptors, and KiB of memory."""
    gc.collect()
    return len(gc.get_objects()), len(list(Path("/proc/self/fd").iterdir())), resident_kib()


def die(mode: str, moment: str) -> None:
    bps.init()
    trainer = Trainer(mode)
    victim = bps.rank() == bps.size() - 1
    try:
        for _ in range(3):  # others may still be in the last one when the victim dies
            trainer.step()
        if victim and moment == "backward":
            trainer.model.body[2].register_full_backward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        while True:
            if victim and moment == "forward":
                os._exit(1)
            trainer.step()
    except BytePSError as error:
        say("raised", type(error).__name__, str(error).replace("\n", " / "))
        sys.exit(RAISED)


def cycles(count: int) -> None:
    for number in range(count):
        bps.init()
        trainer = Trainer(list(MODES)[number % len(MODES)])
        trainer.step()
        trainer.step()
        del trainer
        bps.shutdown()
        if number in (count // 4, count - 1):
            say("held", *held())


def main() -> None:
    torch.set_num_threads(1)
    what, *arguments = sys.argv[1:]
    begin = time.monotonic()
    {
        "train": lambda: train(int(arguments[0]), arguments[1]),
        "die": lambda: die(*arguments),
        "cycles": lambda: cycles(int(arguments[0])),
    }[what]()
    say(f"took {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
