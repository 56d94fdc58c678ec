"""64 MiB over links as fast as this machine's cores may just serve, and faster."""

from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import UNLIMITED
from benchmarks.measures.shapes import measure_shapes

TITLE = "Network lab: 64 MiB float32, 1000 Mbit/s and without a limit"
DEADLINE_S = 400

SHAPES = {2: (0, 2), 4: (0,)}
NO_LIMIT_CALLS = 10  # a turn: the kernel counts CPU time in hundredths of a second


def run(recorder: Recorder) -> None:
    unlimited = measure_shapes(UNLIMITED, 2, (0,), ps_turns={}, calls=NO_LIMIT_CALLS, deadline_s=100)[0]
    unlimited.at_most("machine's CPU time / gloo's", unlimited.machine_ratio("byteps", "gloo"), 0.8)
    unlimited.at_least("speed / gloo's", unlimited.ratio("gloo", "byteps"), 1.0)
    _add(recorder, unlimited)
    for workers, all_servers in SHAPES.items():
        for servers, case in measure_shapes(1000, workers, all_servers, ps_turns={}, deadline_s=100).items():
            case.at_most("time / bound", case.over_bound("byteps"), 1.08)
            if servers == 0:
                case.at_most("machine's CPU time / gloo's", case.machine_ratio("byteps", "gloo"), 1.0)
            _add(recorder, case)


def _add(recorder: Recorder, case: Case) -> None:
    # Where all processes together need most of both cores, these and not the links are the limit.
    figures = case.figures["byteps"]
    if figures.median_s and figures.mean_cpu_s:
        case.notes["cores that byteps keeps busy"] = round(figures.mean_cpu_s / figures.median_s, 2)
    recorder.add(case)
