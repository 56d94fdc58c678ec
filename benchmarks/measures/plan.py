"""What `byteps plan` predicts, beside what a job takes: shapes and rates that it was not tuned on."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from benchmarks.harness.alternate import alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts

TITLE = "Network lab: byteps beside byteps plan, 32 MiB float32"
DEADLINE_S = 600

TENSOR_BYTES = 32 << 20
TURNS = 5
# Rates in Mbit/s: of the workers, of the servers; BYTEPS_PARTITION_BYTES / 1024, or the default.
SHAPES: tuple[tuple[tuple[float, ...], tuple[float, ...], int | None], ...] = (
    ((150,) * 3, (150,) * 2, None),
    ((120,) * 5, (), None),
    ((300,) * 2, (300,), None),
    ((80,) * 6, (80,) * 2, None),
    ((240, 240, 120), (180, 60), None),
    ((100,) * 5, (100,) * 3, 1024),
)
NEAR = 0.05


def run(recorder: Recorder) -> None:
    for workers_mbps, servers_mbps, partition_kib in SHAPES:
        recorder.add(_measure(workers_mbps, servers_mbps, partition_kib))


def _measure(workers_mbps: Sequence[float], servers_mbps: Sequence[float], partition_kib: int | None) -> Case:
    settings = {"BYTEPS_PARTITION_BYTES": str(partition_kib << 10)} if partition_kib else {}
    with Lab([*workers_mbps, *servers_mbps]) as lab:
        testbed = OnHosts(lab, len(workers_mbps), len(servers_mbps))
        figures = alternate(
            [launch.byteps(testbed, settings=settings)], {"bytes": TENSOR_BYTES}, turns=TURNS, deadline_s=100
        )
    partitions = f", partitions of {partition_kib} KiB" if partition_kib else ""
    case = Case(
        f"workers {'/'.join(f'{rate:g}' for rate in workers_mbps)}, "
        f"servers {'/'.join(f'{rate:g}' for rate in servers_mbps) or 'none'} Mbit/s{partitions}",
        planned_s(workers_mbps, servers_mbps, partition_kib),
        "what byteps plan predicts from the rates alone",
        figures,
    )
    ratio = case.over_bound("byteps")
    case.at_least("time / plan", ratio, 1 - NEAR)
    case.at_most("time / plan", ratio, 1 + NEAR)
    return case


def planned_s(workers_mbps: Sequence[float], servers_mbps: Sequence[float], partition_kib: int | None) -> float:
    """Returns the time of a push_pull of TENSOR_BYTES by `byteps plan`."""
    command = [sys.executable, "-m", "byteps.cli", "plan", "--gpus-per-machine", "1", "--json"]
    command += ["--worker-gbps", ",".join(f"{rate / 1e3:g}" for rate in workers_mbps)]
    command += ["--server-gbps", ",".join(f"{rate / 1e3:g}" for rate in servers_mbps)] if servers_mbps else []
    command += ["--partition-kib", str(partition_kib)] if partition_kib else []
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as layers:
        layers.write(f"bytes\n{TENSOR_BYTES}\n")
        layers.flush()
        done = subprocess.run([*command, "--layers", layers.name], capture_output=True, text=True, check=True)
    seconds = json.loads(done.stdout)["simulation"]["placements"]["auto"]["plain_step_s"]
    assert isinstance(seconds, float)
    return seconds
