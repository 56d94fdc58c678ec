"""64 MiB between ranks of one machine, in place."""

from benchmarks.harness.alternate import alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnOneHost

TITLE = "One machine: 64 MiB float32 in place"
DEADLINE_S = 400

TENSOR_BYTES = 64 << 20
CALLS = 5  # a turn
OPENMPI = "OpenMPI, shared memory, ring"
OPENMPI_DEFAULT = "OpenMPI, shared memory"
COPIES = "copies and sums alone, polling"


def run(recorder: Recorder) -> None:
    for ranks in (2, 4):
        with Lab([1000]) as lab:
            testbed = OnOneHost(lab, ranks)
            contenders = [
                launch.byteps(testbed),
                launch.gloo(testbed),
                launch.openmpi(testbed, OPENMPI),
                launch.openmpi(testbed, OPENMPI_DEFAULT, ring=False),
                launch.memory(testbed, "copy"),
                launch.memory(testbed, "in place"),
                launch.copies(testbed, COPIES),
            ]
            figures = alternate(contenders, {"bytes": TENSOR_BYTES, "calls": CALLS}, turns=9, deadline_s=150)
        bounds = [figures[f"memory, {how}"].median_s for how in ("copy", "in place")]
        case = Case(
            f"{ranks} ranks",
            min((bound for bound in bounds if bound), default=None),
            "each rank's memory read and written once, all at once: the faster of two loops",
            figures,
            gigabytes=ranks * TENSOR_BYTES / 1e9,
        )
        case.at_most("time / bound", case.over_bound("byteps"), 2.2)
        case.at_least("speed / gloo's", case.ratio("gloo", "byteps"), 2.5)
        best = min((case.median_s(name) for name in (OPENMPI, OPENMPI_DEFAULT) if case.median_s(name)), default=None)
        ours = case.median_s("byteps")
        case.at_least("speed / OpenMPI's better one", best / ours if best and ours else None, 1.5)
        if ours and (copies := case.median_s(COPIES)):
            case.notes["time / copies and sums alone"] = f"{ours / copies:.2f}"
        case.at_most("CPU time / gloo's", case.cpu_ratio("byteps", "gloo"), 0.6)
        recorder.add(case)
