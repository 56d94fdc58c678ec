"""`byteps bench push_pull`: measures the time of push_pull.

In a job (under bpslaunch, torchrun, mpirun) it measures that job. Otherwise it starts a job on this
machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from byteps.cli.table import format_table
from byteps.config import Config, process_environment
from byteps.errors import InternalError
from byteps.knob import size_bytes

_BYTES = size_bytes(1, 1 << 40)


class Result(NamedTuple):
    """Results of the whole job. Times are those of rank 0."""

    ranks: int
    servers: int
    dtype: str
    tensors: int
    tensor_bytes: int
    iterations: int
    median_s: float  # time of one iteration with all tensors
    p10_s: float
    p90_s: float
    gb_per_s: float  # bytes of all tensors, on each rank, per second
    cpu_s_per_gb: float  # CPU time of all workers together, for each GB of tensors


def add_parser(commands: Any) -> None:
    bench = commands.add_parser("bench", help="measure push_pull", description=__doc__)
    what = bench.add_subparsers(required=True, metavar="what")
    parser = what.add_parser("push_pull", help="time and CPU time of push_pull", description=__doc__)
    parser.add_argument(
        "--size", type=_size, default=64 << 20, metavar="BYTES", help="size of each tensor; suffixes K, M, G (64M)"
    )
    parser.add_argument("--dtype", type=_dtype, default="float32", help="data type, by NumPy's name (float32)")
    parser.add_argument("--tensors", type=int, default=1, help="number of tensors in each iteration (1)")
    parser.add_argument("--iters", type=int, default=20, help="number of measured iterations (20)")
    parser.add_argument("--warmup", type=int, default=3, help="number of iterations before the measurement (3)")
    parser.add_argument("--nproc-per-node", type=int, default=2, help="number of ranks, if it starts a job (2)")
    parser.add_argument("--servers", type=int, default=0, help="number of servers, if it starts a job (0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result to FILE")
    parser.set_defaults(run=_run)


def _size(text: str) -> int:
    try:
        return _BYTES(text)
    except ValueError as expected:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}") from None


def _dtype(name: str) -> str:
    import numpy as np

    from byteps import _core

    known = [each for each in _core.DTYPE_CODES if each in np.sctypeDict]
    if name not in known:
        raise argparse.ArgumentTypeError(f"{name!r}: expected one of {', '.join(known)}")
    return name


def _run(arguments: argparse.Namespace) -> int:
    config = Config.parse(process_environment())
    if config.is_single_process and not config.host_scheduler:
        return _run_in_new_job(arguments)
    result = measure(arguments, config.num_servers)
    if result is not None:
        report = json.dumps(result._asdict(), indent=2) if arguments.json else as_table(result)
        if arguments.output:
            arguments.output.write_text(report + "\n")
        else:
            print(report)
    return 0


def _run_in_new_job(arguments: argparse.Namespace) -> int:
    from byteps.launcher.launch import main as bpslaunch

    with tempfile.TemporaryDirectory() as directory:
        output = arguments.output or Path(directory) / "result"
        job = ["--nproc-per-node", str(arguments.nproc_per_node), "--servers", str(arguments.servers), "--"]
        bench = [sys.executable, "-m", "byteps.cli", "bench", "push_pull", "--output", str(output.absolute())]
        for name in ("size", "dtype", "tensors", "iters", "warmup"):
            bench += [f"--{name}", str(getattr(arguments, name))]
        code = bpslaunch([*job, *bench, *(["--json"] if arguments.json else [])])
        if code == 0 and not arguments.output:
            print(output.read_text(), end="")
        return code


def measure(arguments: argparse.Namespace, servers: int) -> Result | None:
    """Joins the job and measures. Returns None on all ranks but 0."""
    import numpy as np

    import byteps
    from byteps.ops import Average, Buffer, push_pull_buffer, synchronize

    byteps.init()
    dtype = np.dtype(arguments.dtype)
    count = max(arguments.size // dtype.itemsize, 1)
    tensors = [np.full(count, byteps.rank(), dtype) for _ in range(arguments.tensors)]
    buffers = [Buffer(tensor.ctypes.data, tensor.nbytes, dtype.name, tensor) for tensor in tensors]

    def iterate() -> float:
        start = time.perf_counter()
        handles = [
            push_pull_buffer(buffer, buffer, f"bench.{i}", Average, -i, finish=lambda: None)
            for i, buffer in enumerate(buffers)
        ]
        for handle in handles:
            synchronize(handle)
        return time.perf_counter() - start

    for _ in range(arguments.warmup):
        iterate()
    byteps.barrier()
    cpu_start = time.process_time()
    times = [iterate() for _ in range(arguments.iters)]
    cpu = np.array([time.process_time() - cpu_start])
    expected = np.asarray((byteps.size() - 1) / 2).astype(dtype)  # the average of all ranks
    if not all(np.all(tensor == expected) for tensor in tensors):
        raise InternalError(f"push_pull gave a wrong sum on rank {byteps.rank()}: expected {expected} everywhere")
    cpu_s = float(byteps.push_pull(cpu, average=False, name="bench.cpu")[0])
    result = _summarize(arguments, times, cpu_s, byteps.size(), servers, dtype.itemsize * count)
    is_first = byteps.rank() == 0
    byteps.shutdown()
    return result if is_first else None


def _summarize(
    arguments: argparse.Namespace, times: list[float], cpu_s: float, ranks: int, servers: int, tensor_bytes: int
) -> Result:
    gigabytes = tensor_bytes * arguments.tensors / 1e9
    deciles = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times * 9
    median = statistics.median(times)
    return Result(
        ranks=ranks,
        servers=servers,
        dtype=arguments.dtype,
        tensors=arguments.tensors,
        tensor_bytes=tensor_bytes,
        iterations=len(times),
        median_s=median,
        p10_s=deciles[0],
        p90_s=deciles[-1],
        gb_per_s=gigabytes / median,
        cpu_s_per_gb=cpu_s / (gigabytes * len(times)),
    )


def as_table(result: Result) -> str:
    head = ("ranks", "servers", "tensors", "bytes each", "dtype", "median", "p10", "p90", "GB/s", "CPU s/GB")
    row = (
        *(str(number) for number in (result.ranks, result.servers, result.tensors, result.tensor_bytes)),
        result.dtype,
        *(f"{seconds * 1e3:.3f} ms" for seconds in (result.median_s, result.p10_s, result.p90_s)),
        f"{result.gb_per_s:.3f}",
        f"{result.cpu_s_per_gb:.3f}",
    )
    return format_table([head, row])
