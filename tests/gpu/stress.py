"""Push_pulls of CUDA tensors on a real GPU, checked on the GPU. All ranks use GPU 0.

    bpslaunch --nproc-per-node 4 tests/gpu/stress.py [seconds]

Tensors are made on side streams by slow kernels, results are used at once on the stream that waits,
tensors are freed as soon as Python may free them, and their memory is overwritten by others. Values
are small whole numbers, so every sum is exact in every dtype.
"""

from __future__ import annotations

import random
import sys
import time

import torch

import byteps.torch as bps

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.int8,
)


def values(rank: int, step: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    line = torch.arange(count, device="cuda") % 7 + rank + step % 3
    return line.to(dtype).view(shape)


def expected(size: int, step: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    line = (torch.arange(count, device="cuda") % 7 + step % 3) * size + size * (size - 1) // 2
    return line.to(dtype).view(shape)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    bps.init()
    torch.cuda.set_device(0)
    rank, size = bps.rank(), bps.size()
    choices = random.Random(1)  # the same on all ranks
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    busy = torch.randn(2048, 2048, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    steps = checked = 0
    deadline = time.monotonic() + seconds
    while True:
        go_on = bps.push_pull(
            torch.tensor([time.monotonic() < deadline], dtype=torch.int32), average=False, name="go_on"
        )
        if int(go_on) < size:
            break
        steps += 1
        pending = []
        for number in range(8):
            dtype = choices.choice(DTYPES)
            shape = choices.choice([(1,), (1000,), (257, 129), (1 << 20,), (3 << 20,), (64, 3, 50, 50)])
            kind = choices.choice(["in place", "out of place", "channels last", "gaps", "broadcast"])
            stream = choices.choice(streams)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(choices.randrange(3)):
                    torch.mm(busy, busy)
                tensor = values(rank, steps, shape, dtype)
                want = expected(size, steps, shape, dtype)
                name = f"{number}.{dtype}.{len(shape)}.{torch.Size(shape).numel()}.{kind}"
                if kind == "channels last" and len(shape) == 4:
                    tensor = tensor.to(memory_format=torch.channels_last)
                if kind == "gaps" and len(shape) == 2:
                    wide = torch.zeros((shape[0], shape[1] * 2), dtype=dtype, device="cuda")
                    wide[:, ::2] = tensor
                    tensor = wide[:, ::2]
                if kind == "broadcast":
                    want = values(size - 1, steps, shape, dtype)
                    handle = bps.broadcast_async_(tensor, size - 1, name)
                elif kind == "out of place":
                    handle = bps.push_pull_async(tensor, average=False, name=name)
                else:
                    handle = bps.push_pull_async_inplace(tensor, average=False, name=name)
                del tensor
                torch.full((1 << 20,), 99, device="cuda")  # takes the memory of what was freed too early
            pending.append((handle, want, stream))
        order = list(range(len(pending)))
        choices.shuffle(order)
        for index in order:
            handle, want, made_on = pending[index]
            consumer = choices.choice(streams)
            with torch.cuda.stream(consumer):
                consumer.wait_stream(made_on)  # `want` is made there
                result = bps.synchronize(handle)
                count = (result != want).sum()
                result.record_stream(consumer)
                want.record_stream(consumer)
            torch.cuda.current_stream().wait_stream(consumer)
            count.record_stream(torch.cuda.current_stream())
            wrong += count
            checked += 1
            del result, handle
            pending[index] = None
            torch.full((1 << 20,), 77, device="cuda")
    bad = int(wrong)
    metrics = bps.metrics() if hasattr(bps, "metrics") else {}
    print(
        f"stress: rank {rank} of {size}: {steps} steps, {checked} push_pulls, {bad} wrong elements, "
        f"staged {metrics.get('staged_bytes', 0) / 1e9:.1f} GB, unpinned {metrics.get('unpinned_bytes', 0) / 1e9:.2f} GB",
        flush=True,
    )
    bps.shutdown()
    if bad:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
