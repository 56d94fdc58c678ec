"""Measures a lab's links by iperf3: the B of every bound."""

from __future__ import annotations

import json
import subprocess

from benchmarks.lab.lab import Lab

_PORT = "5201"


def best_share(lab: Lab, seconds: float = 3.0) -> float:
    """The part of its nominal rate that the best of goodput_mbps()'s streams carried.

    What a stream has carried, its links can carry; where another one carried less, something else
    than the links was in its way (a core that was busy, another stream). So the best one is what a
    bound may be made of.
    """
    rates = [host.mbps for host in lab.hosts]
    slower = [min(rate, rates[(i + 1) % len(rates)]) for i, rate in enumerate(rates)]
    return max(got / rate for got, rate in zip(goodput_mbps(lab, seconds), slower, strict=True))


def goodput_mbps(lab: Lab, seconds: float = 3.0, streams: int = 1) -> list[float]:
    """Returns the TCP payload in Mbit/s from each host to the next, all at once.

    Each host sends and receives.

    The first second is left out. The i-th figure is that of all streams from host i to host i + 1.
    """
    count = len(lab.hosts)
    servers = [
        lab.popen(host, ["iperf3", "-s", "-1", "-p", _PORT, "--forceflush"], stdout=subprocess.PIPE, text=True)
        for host in range(count)
    ]
    for server in servers:
        assert server.stdout is not None
        while "listening" not in (line := server.stdout.readline()):
            if not line:
                raise RuntimeError("iperf3 does not start as a server")
    options = ["-p", _PORT, "-t", f"{seconds:g}", "-O", "1", "-P", str(streams), "-J"]
    clients = [
        lab.popen(
            host,
            ["iperf3", "-c", lab.hosts[(host + 1) % count].address, *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in range(count)
    ]
    results = [json.loads(client.communicate(timeout=seconds + 30)[0]) for client in clients]
    for server in servers:
        server.communicate(timeout=30)
    return [result["end"]["sum_received"]["bits_per_second"] / 1e6 for result in results]
