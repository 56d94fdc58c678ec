"""Builds this tree on a bare machine with a GPU, and runs all that needs a real one.

    python3 tools/gpu_slot.py [--out FOLDER] [--only build,rules,...] [--openssl FOLDER]

Needs a compiler, CMake, ninja, pybind11 and PyTorch with CUDA; no network. Every part has a time
limit, and its output is in FOLDER/results.txt as soon as it ends. `--openssl`: a folder with
include/ and lib/libcrypto.a, for machines without OpenSSL's headers. Exit code 1: a part has failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
LAUNCH = (PYTHON, "-m", "byteps.launcher.launch")
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone")
TRANSFORMER = "benchmarks/gpu/transformer.py"
ABI = "tests/cpp/device/cuda_abi_check.cc"
CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda")
RULES = ROOT / "build" / "cuda_rules"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


@dataclass(frozen=True)
class Part:
    name: str
    command: Sequence[str]
    limit_s: int
    settings: Mapping[str, str] = field(default_factory=dict)


def parts() -> list[Part]:
    sources = ["tests/cpp/device/cuda_rules.cc", "csrc/device/cuda_driver.cc"]
    sources += [f"csrc/base/{name}.cc" for name in ("status", "check", "log")]
    compiler = ("c++", "-std=c++20", "-O1", "-Icsrc", *sources, "-ldl", "-lpthread", "-o", str(RULES))
    install = (PYTHON, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "-e", ".")
    two = (*LAUNCH, "--nproc-per-node", "2")
    staged = (*two, "benchmarks/gpu/staged_path.py")
    training = (*two, "tests/gpu/training.py")
    ways = "optimizer,ddp,torch_ddp,cross_barrier"
    return [
        Part("build", install, 200),
        Part("build-rules", compiler, 60),
        Part("rules", (str(RULES),), 40),
        Part("abi", ("c++", "-std=c++20", "-fsyntax-only", "-Icsrc", f"-I{CUDA}/include", ABI), 30),
        Part("stress-2", (*two, "tests/gpu/stress.py", "10"), 50),
        Part("stress-4", (*LAUNCH, "--nproc-per-node", "4", "tests/gpu/stress.py", "10"), 60),
        # Memory of other allocators: mapped by cuMemMap, and ordered by streams.
        Part("stress-mapped", (*two, "tests/gpu/stress.py", "5"), 50, {ALLOCATOR: "expandable_segments:True"}),
        Part("stress-ordered", (*two, "tests/gpu/stress.py", "5"), 50, {ALLOCATOR: "backend:cudaMallocAsync"}),
        Part("training", (*training, ways, "float32,float16,bfloat16"), 60),
        Part("training-compiled", (*training, ways, "float32", "compile"), 90),
        Part("staged-path", staged, 100),
        *(
            Part(f"{how}-{backend}-{ranks}", (*TORCHRUN, "--nproc-per-node", ranks, TRANSFORMER, how, backend), 60)
            for ranks in ("2", "4")
            for how, backend in (
                ("alone", "gloo"),
                ("ddp", "gloo"),
                ("ddp", "byteps"),
                ("optimizer", "byteps"),
                ("fsdp2", "gloo"),
                ("fsdp2", "byteps"),
            )
        ),
    ]


def run(part: Part, environment: dict[str, str]) -> tuple[int | None, str, float]:
    """Returns the exit code, None after the time limit, the output, and the time."""
    start = time.monotonic()
    process = subprocess.Popen(
        part.command, cwd=ROOT, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=part.limit_s)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        code = None
    return code, output, time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="build/gpu_slot")
    parser.add_argument("--only", default="", help="names of parts, or their beginnings, separated by commas")
    parser.add_argument("--openssl", default="")
    options = parser.parse_args()
    out = ROOT / options.out
    out.mkdir(parents=True, exist_ok=True)
    RULES.parent.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "BYTEPS_LOG_LEVEL": "warning"}
    if options.openssl:
        folder = Path(options.openssl).resolve()
        crypto = folder / "lib" / "libcrypto.a"
        environment["CMAKE_ARGS"] = (
            f"-DOPENSSL_INCLUDE_DIR={folder}/include -DOPENSSL_CRYPTO_LIBRARY={crypto} -DOPENSSL_SSL_LIBRARY={crypto}"
        )
    only = tuple(filter(None, options.only.split(",")))
    failed = []
    with (out / "results.txt").open("a") as results:
        for part in parts():
            if only and not part.name.startswith(only):
                continue
            code, output, seconds = run(part, {**environment, **part.settings})
            if code != 0:
                failed.append(part.name)
            verdict = "passed" if code == 0 else "timed out" if code is None else f"failed ({code})"
            text = f"=== {part.name}: {verdict} after {seconds:.1f} s\n{output.strip()}\n"
            results.write(text)
            results.flush()
            print(text[-6000:], flush=True)
    print(f"failed: {', '.join(failed) or 'none'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
