"""A rank of the conformance run: tests that PyTorch ships for its own backends, on the backend byteps.

    python suite.py FOLDER TEST...

Their module decides by the name of the backend which of them apply, when it is imported: it is told gloo then, whose
tests are those of a backend for CPU tensors, and byteps when they run. PyTorch starts new processes for each test; here
each test has a process group of its own in the same processes, which takes a tenth of the time.

Writes a line of JSON for each test: [name, "" or the traceback, "" or why it was skipped].
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import os
import sys
import time
import traceback
import unittest
import warnings
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

import byteps.torch  # noqa: F401

TIMEOUT_S = 60  # of a collective
HANGING_S = 100  # a test that takes longer is stuck


def results_path(folder: Path, rank: int) -> Path:
    return folder / f"results{rank}.jsonl"


def prepare(folder: Path, rank: int, size: int) -> type[unittest.TestCase]:
    """PyTorch's test class, made for this backend."""
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(size), "TEMP_DIR": str(folder)}
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    for name in ("barrier", "test_dir"):
        (folder / name).mkdir(exist_ok=True)
    from torch.testing._internal.distributed import distributed_test

    distributed_test.BACKEND = "byteps"
    os.environ["BACKEND"] = "mpi"  # others have tests of groups of two ranks only where there are eight
    distributed_test.Barrier.barrier_id = 0
    # What its profiler tests count are records of C++ backends.
    for backends in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        setattr(distributed_test, backends, [])

    class OnByteps(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        world_size = str(size)

    for name in dir(OnByteps):
        if name.startswith("test_all_to_all"):  # for MPI and NCCL alone, says PyTorch: under what skips them are tests
            setattr(OnByteps, name, inspect.unwrap(getattr(OnByteps, name)))
    return OnByteps


def run(case: type[unittest.TestCase], name: str, folder: Path, rank: int, size: int) -> tuple[str, str]:
    """(traceback, why it was skipped) of one test, in a process group of its own."""
    from torch.testing._internal.common_utils import set_rng_seed

    store = f"file://{folder}/{name}.store"
    try:
        dist.init_process_group(
            "byteps", init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT_S)
        )
        test = case(name)
        test.rank, test.file_name = rank, f"{folder}/{name}.store"
        test._barrier()
        set_rng_seed()
        getattr(test, name)()
        test._barrier()
    except unittest.SkipTest as why:
        return "", str(why) or "skipped"
    except SystemExit as end:
        return "", f"exit code {end.code}"
    except Exception:
        return traceback.format_exc(), ""
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "", ""


def main(folder: Path, names: list[str]) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    warnings.simplefilter("ignore")
    case = prepare(folder, rank, size)
    with results_path(folder, rank).open("w") as results:
        for name in names:
            start = time.monotonic()
            faulthandler.dump_traceback_later(HANGING_S, exit=True)
            results.write(json.dumps([name, *run(case, name, folder, rank, size)]) + "\n")
            results.flush()
            print(f"{time.monotonic() - start:6.2f} s {name}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
