"""64 MiB over links as fast as this machine's cores may just serve."""

from benchmarks.harness.results import Recorder
from benchmarks.measures.shapes import measure_shapes

TITLE = "Network lab: 64 MiB float32, 1000 Mbit/s"
DEADLINE_S = 150

SHAPES = {2: (0, 2), 4: (0,)}


def run(recorder: Recorder) -> None:
    for workers, all_servers in SHAPES.items():
        for case in measure_shapes(1000, workers, all_servers, ps_turns={}, deadline_s=70).values():
            case.at_most("time / bound", case.over_bound("byteps"), 1.08)
            # Where all processes together need most of both cores, these and not the links are the
            # limit.
            figures = case.figures["byteps"]
            if figures.median_s and figures.mean_cpu_s:
                case.notes["cores that byteps keeps busy"] = round(figures.mean_cpu_s / figures.median_s, 2)
            recorder.add(case)
