"""4 KiB between two ranks of one machine, one call after the other."""

from benchmarks.harness.alternate import alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.peers import launch
from benchmarks.peers.places import OnOneHost

TITLE = "One machine: latency of 4 KiB, 2 ranks"
DEADLINE_S = 90

TENSOR_BYTES = 4096
CALLS = 500  # a turn
OPENMPI = "OpenMPI, shared memory"


def run(recorder: Recorder) -> None:
    with Lab([1000]) as lab:
        place = OnOneHost(lab, 2)
        contenders = [launch.byteps(place), launch.gloo(place), launch.openmpi(place, OPENMPI, ring=False)]
        figures = alternate(contenders, {"bytes": TENSOR_BYTES, "calls": CALLS}, turns=15, deadline_s=60)
    case = Case("2 ranks", None, "No bound: wake-ups and schedulers decide.", figures)
    case.at_most("latency / gloo's", case.ratio("byteps", "gloo"), 0.7)
    case.at_most("latency / OpenMPI's", case.ratio("byteps", OPENMPI), 1.5)
    recorder.add(case)
