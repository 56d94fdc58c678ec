"""Push_pulls of CUDA tensors on a real GPU, checked on the GPU. All ranks use GPU 0.

    bpslaunch --nproc-per-node 4 tests/gpu/stress.py [seconds]

Tensors are made on side streams behind slow kernels, results are used at once on the stream that
waits, tensors are freed as soon as Python may free them, and others take their memory. Values are
small whole numbers, so every sum is exact in every dtype.
"""

from __future__ import annotations

import random
import sys
import time
from typing import NamedTuple

import torch

import byteps.torch as bps
from byteps.handles import Handle

DTYPES = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.int32, torch.int64, torch.uint8, torch.int8),
)
SHAPES = [(1,), (1000,), (257, 129), (1 << 20,), (3 << 20,), (64, 3, 50, 50)]
KINDS = ["in place", "out of place", "channels last", "gaps", "broadcast"]

Shape = tuple[int, ...]
Tensor = torch.Tensor
Stream = torch.cuda.Stream


class Pending(NamedTuple):
    handle: Handle
    expected: Tensor
    stream: Stream  # on which `expected` is made


def values(step: int, shape: Shape, dtype: torch.dtype, factor: int, term: int) -> Tensor:
    line = torch.arange(torch.Size(shape).numel(), device="cuda") % 7 + step % 3
    return (line * factor + term).to(dtype).view(shape)


def overwrite(value: float) -> None:
    """Takes the memory of what was freed too early."""
    torch.full((1 << 20,), value, device="cuda")


class Program:
    """What one rank does. All ranks make the same choices."""

    def __init__(self) -> None:
        self.rank, self.size = bps.rank(), bps.size()
        self.choices = random.Random(1)
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.busy = torch.randn(2048, 2048, device="cuda")
        self.wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        self.steps = self.checked = 0

    def step(self) -> None:
        self.steps += 1
        pending = [self.start(number) for number in range(8)]
        self.choices.shuffle(pending)
        while pending:
            self.finish(pending.pop())
            overwrite(77)

    def start(self, number: int) -> Pending:
        dtype, shape = self.choices.choice(DTYPES), self.choices.choice(SHAPES)
        kind, stream = self.choices.choice(KINDS), self.choices.choice(self.streams)
        name = f"{number}.{dtype}.{len(shape)}.{torch.Size(shape).numel()}.{kind}"
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.choices.randrange(3)):
                torch.mm(self.busy, self.busy)
            tensor = values(self.steps, shape, dtype, 1, self.rank)
            expected = values(self.steps, shape, dtype, self.size, self.size * (self.size - 1) // 2)
            if kind == "channels last" and len(shape) == 4:
                tensor = tensor.to(memory_format=torch.channels_last)
            if kind == "gaps" and len(shape) == 2:
                wide = torch.zeros((shape[0], shape[1] * 2), dtype=dtype, device="cuda")
                wide[:, ::2] = tensor
                tensor = wide[:, ::2]
            if kind == "broadcast":
                expected = values(self.steps, shape, dtype, 1, self.size - 1)
                handle = bps.broadcast_async_(tensor, self.size - 1, name)
            elif kind == "out of place":
                handle = bps.push_pull_async(tensor, average=False, name=name)
            else:
                handle = bps.push_pull_async_inplace(tensor, average=False, name=name)
            del tensor
            overwrite(99)
        return Pending(handle, expected, stream)

    def finish(self, pending: Pending) -> None:
        main, consumer = torch.cuda.current_stream(), self.choices.choice(self.streams)
        with torch.cuda.stream(consumer):
            consumer.wait_stream(pending.stream)
            result = bps.synchronize(pending.handle)
            wrong = (result != pending.expected).sum()
            result.record_stream(consumer)
            pending.expected.record_stream(consumer)
        main.wait_stream(consumer)
        wrong.record_stream(main)
        self.wrong += wrong
        self.checked += 1


def main() -> None:
    deadline = time.monotonic() + (float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
    bps.init()
    torch.cuda.set_device(0)
    program = Program()
    torch.cuda.synchronize()
    while True:
        votes = bps.push_pull(torch.tensor([time.monotonic() < deadline], dtype=torch.int32), False, name="go on")
        if int(votes) < bps.size():
            break
        program.step()
    wrong, metrics = int(program.wrong), bps.metrics()
    print(
        f"stress: rank {program.rank} of {program.size}: {program.steps} steps, {program.checked} push_pulls, "
        f"{wrong} wrong elements, staged {metrics['staged_bytes'] / 1e9:.1f} GB, "
        f"unpinned {metrics['unpinned_bytes'] / 1e9:.2f} GB",
        flush=True,
    )
    bps.shutdown()
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
