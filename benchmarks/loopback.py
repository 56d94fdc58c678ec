"""push_pull of two ranks on one machine over TCP, compared with gloo in the same processes.

    python benchmarks/loopback.py [--json FILE]      (with byteps[torch] installed)

Each measure alternates gloo and byteps, run by run, and reports medians and their ratio, on rank
0's clock. CPU time is that of both ranks' processes (user + system), which in `servers 0` is all
there is. For the 4 KiB latency each call follows the last at once. At the end gloo's times are
compared with those of a plain loop, in processes without byteps.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

WORLD = 2
MIB = 1 << 20
NEAR = 1.2  # times its own plain loop: gloo within it is measured fairly


def cpu_seconds() -> float:
    """Returns the CPU time of this process with all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def alternate(sides: dict[str, Callable[[], object]], repeats: int, calls: int) -> dict[str, dict[str, float]]:
    """Median wall and CPU seconds of one call of each side; `calls` calls make one timed run."""
    import torch
    import torch.distributed as dist

    wall: dict[str, list[float]] = {side: [] for side in sides}
    cpu: dict[str, list[float]] = {side: [] for side in sides}
    for repeat in range(repeats + 1):
        for side, call in sides.items():
            dist.barrier()
            cpu_before, before = cpu_seconds(), time.perf_counter()
            for _ in range(calls):
                call()
            taken = time.perf_counter() - before
            dist.barrier()
            spent = torch.tensor([cpu_seconds() - cpu_before], dtype=torch.float64)
            dist.all_reduce(spent)
            if repeat > 0:  # the first warms up
                wall[side].append(taken / calls)
                cpu[side].append(spent.item() / calls)
    return {side: {"wall": statistics.median(wall[side]), "cpu": statistics.median(cpu[side])} for side in sides}


def measure_rank() -> None:
    """Runs all measures on a rank in both libraries. Rank 0 prints them as JSON."""
    import torch
    import torch.distributed as dist

    import byteps.torch as bps

    bps.init()
    dist.init_process_group("gloo", init_method=os.environ["BENCH_GLOO_STORE"], rank=bps.rank(), world_size=bps.size())
    large = torch.zeros(64 * MIB // 4)
    small = torch.zeros(4096 // 4)
    many = [torch.zeros(16384 // 4) for _ in range(200)]

    def gloo_many() -> None:
        for tensor in many:
            dist.all_reduce(tensor)

    def gloo_many_async() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in many]:
            work.wait()

    def byteps_many() -> None:
        handles = [
            bps.push_pull_async_inplace(tensor, average=False, name=f"many.{i}") for i, tensor in enumerate(many)
        ]
        for handle in handles:
            bps.synchronize(handle)

    def byteps_one(tensor: torch.Tensor, name: str) -> Callable[[], object]:
        return lambda: bps.synchronize(bps.push_pull_async_inplace(tensor, average=False, name=name))

    results = {
        "64 MiB": alternate({"gloo": lambda: dist.all_reduce(large), "byteps": byteps_one(large, "large")}, 15, 1),
        "4 KiB": alternate({"gloo": lambda: dist.all_reduce(small), "byteps": byteps_one(small, "small")}, 15, 100),
        "200 x 16 KiB": alternate({"gloo": gloo_many, "gloo async": gloo_many_async, "byteps": byteps_many}, 15, 1),
    }
    if bps.rank() == 0:
        Path(os.environ["BENCH_RESULT"]).write_text(json.dumps(results))
    dist.destroy_process_group()
    bps.shutdown()


def plain_gloo_s(size_bytes: int, calls: int) -> float:
    """The seconds of an all_reduce in a program of a few lines, in which there is no byteps."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "lo",
            "BENCH_STORE": f"file://{folder}/store",
            "BENCH_SIZE": str(WORLD),
        }
        program = Path(__file__).parent / "peers" / "plain_c10d.py"
        command = [sys.executable, str(program), "gloo", "all_reduce", "1", str(size_bytes), str(calls), "15"]
        ranks = [
            subprocess.Popen(command, env=environ | {"BENCH_RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(WORLD)
        ]
        printed = [rank.communicate(timeout=120)[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise RuntimeError(f"the plain loop of gloo failed: exit codes {[rank.returncode for rank in ranks]}")
    return statistics.median(map(float, printed[0].split()))


def report_fairness(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> None:
    """Compares gloo, as measured beside byteps, with gloo alone."""
    print()
    for work, size_bytes, calls in (("64 MiB", 64 * MIB, 1), ("4 KiB", 4096, 100)):
        plain_s = plain_gloo_s(size_bytes, calls)
        for job, works in results.items():
            ratio = works[work]["gloo"]["wall"] / plain_s
            verdict = "" if ratio <= NEAR else f": UNFAIR, above {NEAR}"
            print(f"gloo, {work}, servers {job}: {ratio:.2f} x its own plain loop ({plain_s * 1e3:.3f} ms){verdict}")


def run_job(servers: int) -> dict[str, dict[str, dict[str, float]]]:
    """Runs both ranks in a new job."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        environ = {
            **os.environ,
            "BENCH_GLOO_STORE": f"file://{folder}/store",
            "BENCH_RESULT": str(result),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        launcher = [sys.executable, "-m", "byteps.launcher.launch", "--nproc-per-node", str(WORLD)]
        command = [*launcher, "--servers", str(servers), "--", sys.executable, __file__, "--rank"]
        subprocess.run(command, env=environ, check=True, timeout=600)
        return json.loads(result.read_text())


def report(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> None:
    """A table for people."""
    print(f"{'servers':8}{'work':14}{'side':12}{'median ms':>10}{'CPU s/GB':>10}{'speed':>8}{'CPU':>7}   against gloo")
    sizes = {"64 MiB": 64 * MIB, "4 KiB": 4096, "200 x 16 KiB": 200 * 16384}
    for job, works in results.items():
        for work, sides in works.items():
            for side, figures in sides.items():
                speed = sides["gloo"]["wall"] / figures["wall"]
                cpu = figures["cpu"] / sides["gloo"]["cpu"]
                # GB moved: each rank's tensor bytes, once
                cpu_per_gb = figures["cpu"] / (WORLD * sizes[work] / 1e9)
                print(f"{job:8}{work:14}{side:12}{figures['wall'] * 1e3:10.3f}{cpu_per_gb:10.3f}{speed:8.2f}{cpu:7.2f}")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    if options.rank:
        return measure_rank()
    results = {str(servers): run_job(servers) for servers in (0, 1)}
    report(results)
    report_fairness(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    return None


if __name__ == "__main__":
    main()
