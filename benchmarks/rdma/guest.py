"""Runs rdma_pair and perftest in turns on a machine with two RDMA devices. Writes JSON.

python -m benchmarks.rdma.guest RDMA_PAIR TURNS
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

from benchmarks.harness.contender import machine_busy_s

ADDRESS = "10.77.0.1"
GID = ("-x", "1")  # GID of its IPv4 address, RoCE v2
PATIENCE = ("-u", "20")  # packets wait long on an emulated processor
LIMIT_S = 120
MIB_FRAMES = 60
SMALL_FRAMES = 600
SMALL_BYTES = 4096


def pair(server: list[str], client: list[str]) -> tuple[str, float]:
    """Runs server and client. Returns the client's output and the processors' busy time."""
    busy_s = machine_busy_s()
    with subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as listening:
        try:
            time.sleep(0.7)  # perftest's client does not try again
            done = subprocess.run(client, capture_output=True, text=True, timeout=LIMIT_S, check=True)
            listening.wait(LIMIT_S)
        finally:
            listening.kill()
    return done.stdout, machine_busy_s() - busy_s


def ours(program: str, what: str, size: int, count: int) -> dict[str, float]:
    client = [program, "connect", "rxe1", f"{ADDRESS}:7001", what, str(size), str(count)]
    text, busy_s = pair([program, "listen", "rxe0", "7001"], client)
    return {"seconds": json.loads(text)["seconds"], "busy_s": busy_s}


def perftest(program: str, size: int, count: int, *more: str) -> tuple[list[float], float]:
    """The figures of its one line of results."""
    words = [program, *GID, *PATIENCE, "-F", "-s", str(size), "-n", str(count), *more]
    text, busy_s = pair([*words, "-d", "rxe0"], [*words, "-d", "rxe1", ADDRESS])
    line = re.search(rf"^ *{size} +{count} +(.*)$", text, re.MULTILINE)
    if not line:
        raise SystemExit(f"{program} said:\n{text}")
    return [float(word) for word in line.group(1).split()], busy_s


def write_bw() -> dict[str, float]:
    figures, busy_s = perftest("ib_write_bw", 1 << 20, MIB_FRAMES, "--report_gbits")
    return {"seconds": MIB_FRAMES * (8 << 20) / (figures[1] * 1e9), "busy_s": busy_s}


def send_lat() -> dict[str, float]:
    figures, busy_s = perftest("ib_send_lat", SMALL_BYTES, SMALL_FRAMES, "-e")
    average_us = figures[3]
    return {"seconds": 2 * SMALL_FRAMES * average_us * 1e-6, "busy_s": busy_s, "typical_us": figures[2]}


def main() -> None:
    program, turns = sys.argv[1], int(sys.argv[2])
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(turns):
        found.setdefault("bandwidth, byteps", []).append(ours(program, "bandwidth", 1 << 20, MIB_FRAMES))
        found.setdefault("bandwidth, ib_write_bw", []).append(write_bw())
        found.setdefault("latency, byteps", []).append(ours(program, "latency", SMALL_BYTES, SMALL_FRAMES))
        found.setdefault("latency, ib_send_lat", []).append(send_lat())
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
