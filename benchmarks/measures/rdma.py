"""Frames by RDMA compared with perftest, on two Soft-RoCE devices of a virtual machine.

Only the ratios are meaningful.
"""

import json
import sys

from benchmarks.harness.alternate import Figures
from benchmarks.harness.results import ROOT, Case, Recorder
from benchmarks.rdma import guest
from tests.rdma.machine import run_in_vm

TITLE = "RDMA: frames of 1 MiB and of 4 KiB, beside perftest (emulated processor: compare within a column only)"
DEADLINE_S = 900

TURNS = 7


def run(recorder: Recorder) -> None:
    program = ROOT / "build" / "release" / "rdma_pair"
    command = [sys.executable, "-m", "benchmarks.rdma.guest", program, str(TURNS)]
    done = run_in_vm(command, DEADLINE_S - 200, folder=ROOT)
    if done.status != 0:
        raise SystemExit(done.describe())
    found = json.loads(done.stdout)
    bandwidth = _case("1 MiB, one way", found, "bandwidth", "ib_write_bw", guest.MIB_FRAMES)
    bandwidth.at_most("time / ib_write_bw's", bandwidth.ratio("byteps", "ib_write_bw"), 1 / 0.9)
    bandwidth.at_most("processors' time / ib_write_bw's", bandwidth.cpu_ratio("byteps", "ib_write_bw"), 1 / 0.9)
    recorder.add(bandwidth)
    latency = _case("4 KiB, there and back", found, "latency", "ib_send_lat", guest.SMALL_FRAMES)
    latency.at_most("latency / ib_send_lat's", latency.ratio("byteps", "ib_send_lat"), 1.5)
    recorder.add(latency)


def _case(name: str, found: dict[str, list[dict[str, float]]], what: str, peer: str, calls: int) -> Case:
    figures = {}
    for contender in ("byteps", peer):
        turns = found[f"{what}, {contender}"]
        figures[contender] = Figures(
            seconds=[turn["seconds"] / calls for turn in turns], cpu_s=[turn["busy_s"] / calls for turn in turns]
        )
    return Case(name, None, "", figures)
