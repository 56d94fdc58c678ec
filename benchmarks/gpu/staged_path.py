"""Speed of push_pulls of CUDA tensors: beside plain copies, and beside matrix products.

    bpslaunch --nproc-per-node 2 benchmarks/gpu/staged_path.py

All ranks use GPU 0. Figures are medians; GB/s are bytes of the tensor by time.
"""

from __future__ import annotations

import statistics
import time

import torch

import byteps
import byteps.torch as bps

MIB = 1 << 20
ONE = torch.ones(1)


def meet() -> None:
    bps.push_pull(ONE, name="meet")


def timed(action, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        meet()
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    bps.init()
    torch.cuda.set_device(0)
    rank, size = bps.rank(), bps.size()
    report = print if rank == 0 else (lambda *_: None)
    report(f"ranks {size}, {torch.cuda.get_device_name(0)}, torch {torch.__version__}")

    out = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    back = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    there, here = out.cuda(), back.cuda()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    def both_ways() -> None:
        with torch.cuda.stream(first):
            out.copy_(there, non_blocking=True)
        with torch.cuda.stream(second):
            here.copy_(back, non_blocking=True)

    def one_way() -> None:
        with torch.cuda.stream(first):
            out.copy_(there, non_blocking=True)

    copy_s = timed(both_ways, 7) / 256
    report(
        f"pinned copies, 256 MiB, every rank at once: to the host {256 * MIB / timed(one_way, 7) / 1e9:.2f} GB/s, "
        f"both ways at once {MIB / copy_s / 1e9:.2f} GB/s each way"
    )
    plain = torch.empty(256 * MIB, dtype=torch.uint8)
    report(f"plain copy to the host: {256 * MIB / timed(lambda: plain.copy_(there), 3) / 1e9:.2f} GB/s")
    del out, back, plain, there, here

    for mib in (1, 16, 64, 256, 1024):
        rounds = 21 if mib <= 16 else 9 if mib <= 256 else 5
        host = torch.ones(mib * MIB // 4)
        device = torch.ones(mib * MIB // 4, device="cuda")
        bps.push_pull_inplace(host, name=f"host {mib}")
        bps.push_pull_inplace(device, name=f"device {mib}")
        torch.cuda.synchronize()
        before = byteps.metrics()
        host_s = timed(lambda: bps.push_pull_inplace(host, name=f"host {mib}"), rounds)
        after = byteps.metrics()
        sum_rate = (after["sum_bytes"] - before["sum_bytes"]) / max(after["sum_us"] - before["sum_us"], 1) / 1e3
        device_s = timed(lambda: bps.push_pull_inplace(device, name=f"device {mib}"), rounds)
        bound = min(MIB / copy_s, mib * MIB / host_s)
        report(
            f"{mib:5} MiB: device {mib * MIB / device_s / 1e9:6.2f} GB/s ({device_s * 1e3:8.2f} ms), "
            f"host tensors {mib * MIB / host_s / 1e9:6.2f} GB/s, sums {sum_rate:5.1f} GB/s a thread, "
            f"ratio to the slower of copies and host tensors {mib * MIB / device_s / bound:.2f}"
        )
    metrics = byteps.metrics()
    report(f"unpinned: {metrics['unpinned_bytes'] / 1e9:.2f} of {metrics['staged_bytes'] / 1e9:.2f} GB")

    # What a gradient's hook costs the calling thread.
    small = [torch.ones(1000, device="cuda") for _ in range(200)]
    times = []
    for step in range(5):
        handles = []
        for number, tensor in enumerate(small):
            start = time.perf_counter()
            handles.append(bps.push_pull_async_inplace(tensor, name=f"hook {number}"))
            times.append(time.perf_counter() - start)
        for handle in handles:
            bps.synchronize(handle)
    times = times[len(small) :]
    report(
        f"push_pull_async_inplace of a CUDA tensor: median {statistics.median(times) * 1e6:.1f} us, "
        f"90 % {sorted(times)[len(times) * 9 // 10] * 1e6:.1f} us"
    )

    # The same in a hook of DistributedOptimizer.
    from byteps.torch.single_bucket import SingleParameterBucket

    model = torch.nn.Sequential(*[torch.nn.Linear(100, 100, device="cuda") for _ in range(50)])
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    sends: list[float] = []
    send = SingleParameterBucket.send

    def timed_send(bucket, in_flight, step) -> None:
        start = time.perf_counter()
        send(bucket, in_flight, step)
        sends.append(time.perf_counter() - start)

    SingleParameterBucket.send = timed_send
    for _ in range(6):
        model(torch.ones(8, 100, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    sends = sends[100:]
    if sends:
        report(
            f"a gradient's hook: median {statistics.median(sends) * 1e6:.1f} us, "
            f"90 % {sorted(sends)[len(sends) * 9 // 10] * 1e6:.1f} us"
        )

    # Matrix products of rank 0 beside push_pulls of all ranks.
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    big = torch.ones(64 * MIB // 4, device="cuda")
    side = torch.cuda.Stream()

    def products(with_push_pull: bool) -> float:
        handles = []
        meet()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if with_push_pull:
            with torch.cuda.stream(side):
                handles = [bps.push_pull_async(big, name=f"beside {i}") for i in range(8)]
        begin.record()
        if rank == 0:
            for _ in range(400):
                torch.mm(a, a)
        end.record()
        end.synchronize()
        with torch.cuda.stream(side):
            for handle in handles:
                bps.synchronize(handle)
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    pairs = [(products(False), products(True)) for _ in range(9)][2:]
    alone, beside = (statistics.median(each) for each in zip(*pairs, strict=True))
    report(
        f"400 matrix products: alone {alone:.2f} ms, beside push_pulls {beside:.2f} ms, "
        f"{(beside / alone - 1) * 100:.1f} % slower"
    )
    bps.shutdown()


if __name__ == "__main__":
    main()
