"""16 MiB over links of which one drops to a quarter of its rate and recovers, with the default settings."""

from __future__ import annotations

import time

from benchmarks.bounds import placement_bound_s
from benchmarks.harness.alternate import Figures
from benchmarks.harness.contender import Contender, ContenderError
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.lab.iperf import best_share
from benchmarks.measures.shapes import bytes_per_s
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts

TITLE = "Network lab: 16 MiB float32, 200 Mbit/s, a link that drops to 50 Mbit/s and recovers"
DEADLINE_S = 900

RATE_MBPS = 200
SLOW_MBPS = RATE_MBPS / 4
TENSOR_BYTES = 16 << 20
SETTLED_S = 10.0  # after a drop
RECOVERED_S = 75.0  # higher speeds have to be tried, some in steps of a quarter
MEASURED_S = 8.0
# Workers, servers, and the host whose link changes.
SHAPES = [(4, 0, 1), (4, 2, 0), (4, 2, 4)]
# The links are as unknown as in a job whose user has set nothing.
DEFAULTS = {"BYTEPS_NIC_MBPS": "0"}


def run(recorder: Recorder) -> None:
    for workers, servers, changing in SHAPES:
        with Lab([RATE_MBPS] * (workers + servers)) as lab:
            share = best_share(lab)
            figures = measure(lab, launch.byteps(OnHosts(lab, workers, servers), settings=DEFAULTS), changing)
        for what, each in figures.items():
            rates = [float(RATE_MBPS)] * (workers + servers)
            if what == "slower":
                rates[changing] = SLOW_MBPS
            carried = [bytes_per_s(rate * share) for rate in rates]
            case = Case(
                f"({workers}, {servers}), {what} link of {'worker' if changing < workers else 'server'} {changing}",
                placement_bound_s(TENSOR_BYTES, carried[:workers], carried[workers:]),
                f"water-filling for the rates of that time; links carry {share:.3f} of them by iperf3",
                {"byteps": each},
                gigabytes=workers * TENSOR_BYTES / 1e9,
            )
            case.at_most("time / bound", case.over_bound("byteps"), 1.15)
            recorder.add(case)


def measure(lab: Lab, contender: Contender, changing: int) -> dict[str, Figures]:
    """Returns figures of steps before the change, after the drop, and after the recovery."""
    figures = {what: Figures() for what in ("unchanged", "slower", "recovered")}
    try:
        contender.start()
        contender.step({"bytes": TENSOR_BYTES, "calls": 0})
        go_on(contender, 2.0, Figures())
        go_on(contender, MEASURED_S, figures["unchanged"])
        for what, rate, wait_s in (("slower", SLOW_MBPS, SETTLED_S), ("recovered", RATE_MBPS, RECOVERED_S)):
            lab.set_rate(changing, rate)
            go_on(contender, wait_s, Figures())
            go_on(contender, MEASURED_S, figures[what])
    except (ContenderError, OSError) as error:
        for each in figures.values():
            each.failure = each.failure or (None if each.steps else str(error))
    finally:
        contender.stop()
    return figures


def go_on(contender: Contender, for_s: float, figures: Figures) -> None:
    """Runs steps until this time has passed."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        figures.add(contender.step({"bytes": TENSOR_BYTES}), 1)
