"""Runs a command on every host of a lab, as a job of byteps.

    python -m benchmarks.lab --hosts 4 --mbps 200 -- python examples/torch/fashion_mnist.py
    python -m benchmarks.lab --hosts 4 --servers 2 --mbps 200 -- byteps bench push_pull
    python -m benchmarks.lab --mbps 400 100 -- bash -c 'ip addr show eth0'
    python -m benchmarks.lab --hosts 2 --loss 1 --delay-ms 20 -- byteps bench push_pull --size 1M --iters 3

Each command finds its host in LAB_HOST and all addresses in LAB_ADDRESSES. The lab is gone when the
first one fails or all have ended.
"""

from __future__ import annotations

import argparse
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

from benchmarks.lab.iperf import goodput_mbps
from benchmarks.lab.job import LabJob
from benchmarks.lab.lab import Lab
from benchmarks.lab.relay import Impairments


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, help="on which the command runs; else one for each rate")
    parser.add_argument("--servers", type=int, default=0, help="further hosts, with a byteps server each (0)")
    parser.add_argument(
        "--mbps", type=float, nargs="+", default=[200], help="Mbit/s of each link, both ways; one for all, or a list"
    )
    parser.add_argument("--mtu", type=int, default=1500, help="bytes (1500)")
    bad = parser.add_argument_group("bad networks, on the way from each host to each other one")
    for name in ("loss", "duplicate", "reorder"):
        bad.add_argument(f"--{name}", type=float, default=0, metavar="PERCENT", help="of the packets (0)")
    bad.add_argument("--delay-ms", type=float, default=0, metavar="MS", help="of each packet (0)")
    bad.add_argument("--jitter-ms", type=float, default=0, metavar="MS", help="at most, added to the delay (0)")
    parser.add_argument("--unknown", action="store_true", help="byteps is not told what the links carry")
    parser.add_argument("--iperf", action="store_true", help="first measure what the links carry")
    parser.add_argument("command", nargs="+", help="and its arguments, after --")
    options = parser.parse_args()
    total = (options.hosts or len(options.mbps) - options.servers) + options.servers
    rates = options.mbps * total if len(options.mbps) == 1 else options.mbps
    if len(rates) != total or total <= options.servers:
        parser.error(f"{len(rates)} rates for {total} hosts, of which {options.servers} are servers")
    try:
        impairments = Impairments(options.loss, options.duplicate, options.reorder, options.delay_ms, options.jitter_ms)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Without impairments the lab has a bridge, which costs less of the machine.
    with Lab(rates, mtu=options.mtu, impairments=impairments if impairments != Impairments() else None) as lab:
        if options.iperf:
            print("iperf3, Mbit/s:", *(f"{rate:.1f}" for rate in goodput_mbps(lab)), flush=True)
        settings = {"BYTEPS_NIC_MBPS": "0"} if options.unknown else {}
        return run_job(lab, total - options.servers, options.command, settings)


def run_job(lab: Lab, workers: int, command: list[str], settings: Mapping[str, str]) -> int:
    """Runs a job until all workers have ended or one has failed. Returns its exit code."""
    job = LabJob(lab, workers, len(lab.hosts) - workers, settings)
    for host in job.servers:
        lab.popen(host.number, [sys.executable, "-m", "byteps.server"], env=job.environment(host))
    exit_codes: queue.Queue[int] = queue.Queue()
    for host in job.workers:
        process = lab.popen(
            host.number, command, env=job.environment(host), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=_follow, args=(host.name, process, exit_codes)).start()
    for _ in job.workers:
        if code := exit_codes.get():
            return code if code > 0 else 128 - code
    return 0


def _follow(name: str, process: subprocess.Popen[str], exit_codes: queue.Queue[int]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(f"{name}: {line}")
        sys.stdout.flush()
    exit_codes.put(process.wait())


if __name__ == "__main__":
    sys.exit(main())
