"""Speed of push_pulls of CUDA tensors: beside plain copies, and beside matrix products.

    bpslaunch --nproc-per-node 2 benchmarks/gpu/staged_path.py [sizes] [calls] [products]

All ranks use GPU 0. Figures are medians of rank 0; GB/s are bytes of the tensor by time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

import byteps
import byteps.torch as bps
from byteps import _core
from byteps.buffer import DTYPE_CODES
from byteps.ops import ReduceOp

MIB = 1 << 20
SIZES_MIB = {1: 21, 16: 21, 64: 15, 256: 9, 1024: 5}  # rounds by size


def report(text: str) -> None:
    if bps.rank() == 0:
        print(text, flush=True)


def meet() -> None:
    bps.push_pull(torch.ones(1), name="meet")


def timed(action: Callable[[], object], rounds: int) -> float:
    """Returns the median time of `action`, with the GPU's work, in s."""
    times = []
    for _ in range(rounds):
        meet()
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_copies() -> float:
    """Returns the rate of pinned copies in both directions at once, in bytes/s."""
    size = 256 * MIB
    pinned = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def to_host() -> None:
        with torch.cuda.stream(streams[0]):
            pinned[0].copy_(device[0], non_blocking=True)

    def both_ways() -> None:
        to_host()
        with torch.cuda.stream(streams[1]):
            device[1].copy_(pinned[1], non_blocking=True)

    rate = size / timed(both_ways, 7)
    plain = torch.empty(size, dtype=torch.uint8)
    report(
        f"copies of 256 MiB, every rank at once: pinned {size / timed(to_host, 7) / 1e9:.2f} GB/s, both ways at once "
        f"{rate / 1e9:.2f} GB/s each way; plain {size / timed(lambda: plain.copy_(device[0]), 3) / 1e9:.2f} GB/s"
    )
    return rate


def measure_sum_loops() -> float:
    """Returns the rate at which all ranks sum two pieces of pinned memory at once, in bytes/s."""
    piece, threads, rounds = MIB, 4, 16
    memory = torch.empty(threads * 3 * rounds * piece, dtype=torch.uint8, pin_memory=True).zero_()

    def work(thread: int) -> None:
        first = memory.data_ptr() + thread * 3 * rounds * piece
        for offset in range(first, first + 3 * rounds * piece, 3 * piece):
            sources = [offset + piece, offset + 2 * piece]
            _core.reduce_n(offset, sources, piece // 4, DTYPE_CODES["float32"], ReduceOp.Sum.value)

    with ThreadPoolExecutor(threads) as pool:
        rate = bps.size() * threads * rounds * piece / timed(lambda: list(pool.map(work, range(threads))), 9)
    report(f"sum loops of all ranks on pinned memory, {threads} threads each: {rate / 1e9:.2f} GB/s")
    return rate


def measure_sums(tensor: torch.Tensor, name: str, rounds: int) -> tuple[float, float]:
    """Returns the time of a push_pull in s, and the rate of one summing thread in GB/s."""
    bps.push_pull_inplace(tensor, name=name)
    before = byteps.metrics()
    seconds = timed(lambda: bps.push_pull_inplace(tensor, name=name), rounds)
    after = byteps.metrics()
    return seconds, (after["sum_bytes"] - before["sum_bytes"]) / max(after["sum_us"] - before["sum_us"], 1) / 1e3


def measure_sizes(limit: float) -> None:
    for mib, rounds in SIZES_MIB.items():
        host_s, _ = measure_sums(torch.ones(mib * MIB // 4), f"host {mib}", rounds)
        device_s, sum_rate = measure_sums(torch.ones(mib * MIB // 4, device="cuda"), f"device {mib}", rounds)
        rate = mib * MIB / device_s
        report(
            f"{mib:5} MiB: {rate / 1e9:6.2f} GB/s ({device_s * 1e3:8.2f} ms), {rate / limit:.2f} of the slower "
            f"of both; {sum_rate:.1f} GB/s a summing thread; host tensors {mib * MIB / host_s / 1e9:6.2f} GB/s"
        )
    metrics = byteps.metrics()
    report(f"unpinned: {metrics['unpinned_bytes'] / 1e9:.2f} of {metrics['staged_bytes'] / 1e9:.2f} GB")


def describe_calls(times: list[float]) -> str:
    times = sorted(times)
    return f"median {statistics.median(times) * 1e6:.1f} us, 90 % {times[len(times) * 9 // 10] * 1e6:.1f} us"


def measure_calls(device: str) -> None:
    """What a call costs the thread that makes it."""
    tensors = [torch.ones(1000, device=device) for _ in range(200)]
    times: list[float] = []
    for _ in range(5):
        handles = []
        for number, tensor in enumerate(tensors):
            start = time.perf_counter()
            handles.append(bps.push_pull_async_inplace(tensor, name=f"{device} call {number}"))
            times.append(time.perf_counter() - start)
        for handle in handles:
            bps.synchronize(handle)
    report(f"push_pull_async_inplace on {device}: {describe_calls(times[len(tensors) :])}")


def measure_hooks(device: str) -> None:
    """What a hook of DistributedOptimizer costs the thread that runs backward."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(1000, 1000, device=device, bias=False) for _ in range(50)])
    starts: list[float] = []
    times: list[float] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: starts.append(time.perf_counter()))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: times.append(time.perf_counter() - starts[-1]))
    data = torch.ones(8, 1000, device=device)
    for _ in range(12):
        model(data).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    report(f"a gradient's hook on {device}: {describe_calls(times[100:])}")


def measure_products() -> None:
    """Matrix products of rank 0, alone and beside push_pulls of all ranks."""
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    tensor = torch.ones(64 * MIB // 4, device="cuda")
    side = torch.cuda.Stream()

    def products(push_pulls: int) -> float:
        meet()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(side):
            handles = [bps.push_pull_async(tensor, name=f"beside {i}") for i in range(push_pulls)]
        begin.record()
        if bps.rank() == 0:
            for _ in range(400):
                torch.mm(matrix, matrix)
        end.record()
        end.synchronize()
        with torch.cuda.stream(side):
            for handle in handles:
                bps.synchronize(handle)
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end))

    pairs = [(products(0), products(8)) for _ in range(9)][2:]
    alone, beside = (statistics.median(each) for each in zip(*pairs, strict=True))
    report(
        f"400 matrix products: {alone:.2f} ms, beside push_pulls {beside:.2f} ms: {(beside / alone - 1) * 100:+.1f} %"
    )


def main() -> None:
    bps.init()
    torch.cuda.set_device(0)
    report(f"{bps.size()} ranks, {torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    chosen = sys.argv[1:] or ["sizes", "calls", "products"]
    if "sizes" in chosen:
        measure_sizes(min(measure_copies(), measure_sum_loops()))
    if "calls" in chosen:
        for device in ("cpu", "cuda"):
            measure_calls(device)
            measure_hooks(device)
    if "products" in chosen:
        measure_products()
    bps.shutdown()


if __name__ == "__main__":
    main()
