"""PyTorch's own tests of torch.distributed, from the installed wheel, on the backend byteps."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.job import Job, job_environment, output_path

pytest.importorskip("torch")
pytest.importorskip("expecttest")

pytestmark = pytest.mark.timeout(300)  # the first test waits for all of them

RANKS = 4  # fewer, and tests of groups would be skipped
DEADLINE_S = 240
SUITE = Path(__file__).parent / "torch_c10d" / "suite.py"

# Pattern of names: why they are not run.
EXCLUDED = {
    # for other backends
    "test_batch_isend_irecv_*err": "of NCCL alone",
    # about gloo, not about collectives
    "test_barrier_timeout_*": "expect gloo's words; test_torch_process_group.py has the timeout of a group",
    "test_monitored_barrier_*": "torch offers monitored_barrier with the backend gloo alone",
    "*_profiler": "count the records that backends in C++ make for torch's profiler",
    # skipped by PyTorch itself
    "test_SyncBatchNorm_process_group": "needs torchvision",
    "test_broadcast_object_list": "broken, says PyTorch",
}


def shipped() -> list[str]:
    """Returns the names of PyTorch's tests without importing them.

    Tests for GPUs skip themselves.
    """
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "testing/_internal/distributed/distributed_test.py"
    (base,) = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == "_DistTestBase"
    )
    return [
        node.name
        for node in base.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not _needs_gpu(node)
    ]


def _needs_gpu(function: ast.FunctionDef) -> bool:
    decorators = " ".join(map(ast.unparse, function.decorator_list))
    return "skip_if_no_gpu" in decorators or "skip_if_lt_x_gpu" in decorators or "_cuda" in function.name


NAMES = [name for name in shipped() if not any(fnmatch(name, pattern) for pattern in EXCLUDED)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[str, str]]]:
    """Returns for each rank: test -> (traceback, reason of a skip)."""
    folder = tmp_path_factory.mktemp("c10d")
    inherited = {
        name: value for name, value in job_environment(0, 1).items() if not name.startswith(("BYTEPS_", "DMLC_"))
    }
    processes = []
    try:
        for rank in range(RANKS):
            own = {
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "BYTEPS_START_TIMEOUT_S": "30",
                "BYTEPS_TIMEOUT_S": "20",
            }
            with output_path(folder, rank).open("wb") as output:
                command = [sys.executable, SUITE, folder, *NAMES]
                processes.append(
                    subprocess.Popen(command, env=inherited | own, stdout=output, stderr=subprocess.STDOUT)
                )
        finished = Job(processes, folder).wait(DEADLINE_S)
    finally:
        Job(processes, folder).kill()
    for process in finished:
        assert process.returncode == 0, process.output
    lines = [(folder / f"results{rank}.jsonl").read_text().splitlines() for rank in range(RANKS)]
    return [{name: (error, skipped) for name, error, skipped in map(json.loads, of_rank)} for of_rank in lines]


@pytest.mark.parametrize("name", NAMES)
def test_conformance(results: list[dict[str, tuple[str, str]]], name: str) -> None:
    for rank, of_rank in enumerate(results):
        error, skipped = of_rank[name]
        assert not error, f"rank {rank}:\n{error}"
        assert not skipped, f"rank {rank} skipped it: {skipped}; expected it to run, or a line in EXCLUDED"


def test_what_is_excluded_exists() -> None:
    assert {pattern for pattern in EXCLUDED if not any(fnmatch(name, pattern) for name in shipped())} == set()
