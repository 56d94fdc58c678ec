"""Training steps of real models on links where communication takes as long as compute."""

import os
import sys

from benchmarks.bounds import overlap_bound_s, placement_bound_s
from benchmarks.harness.alternate import Figures
from benchmarks.harness.contender import Contender, ContenderError
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.lab.iperf import best_share
from benchmarks.measures.shapes import bytes_per_s
from benchmarks.models import FORWARD_PART, MODELS, Layer
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts

TITLE = "Network lab: compute and communication at once, 2 workers"
DEADLINE_S = 1200

# Slow enough that the CPU time of four network stacks on two cores is a small part of a step.
RATES_MBPS = {"ResNet-50": 100, "GPT-2 small": 600}
MODES = ("compute", "communication", "priority", "no priority")
NAMES = {"priority": "byteps", "no priority": "byteps, no priority"}
TURNS = 5
STEPS = 3  # in overlapping modes ranks may begin a step at different times


def run(recorder: Recorder) -> None:
    for model, rate_mbps in RATES_MBPS.items():
        with Lab([rate_mbps] * 2) as lab:
            goodput = rate_mbps * best_share(lab)
            size_bytes = 4 * sum(layer.elements for layer in MODELS[model]())
            communication_s = placement_bound_s(size_bytes, [bytes_per_s(goodput)] * 2)
            program = (sys.executable, "-m", "benchmarks.peers.overlap_rank")
            contender = launch.byteps(OnHosts(lab, 2), program=program)
            figures = _measure(contender, model, communication_s)
        recorder.add(_case(model, rate_mbps, goodput, communication_s, figures))


def _measure(contender: Contender, model: str, compute_s: float) -> dict[str, Figures]:
    figures = {NAMES.get(mode, mode): Figures() for mode in MODES}
    try:
        contender.start()
        contender.step({"model": model, "calls": 0})
        for _ in range(min(TURNS, int(os.environ.get("BENCH_TURNS", TURNS)))):
            for mode in MODES:
                calls = STEPS if mode in NAMES else 1
                step = contender.step({"model": model, "mode": mode, "compute_s": compute_s, "calls": calls})
                mine = figures[NAMES.get(mode, mode)]
                mine.seconds.append(max(rank["step_s"] for rank in step.ranks))
    except ContenderError as error:
        for each in figures.values():
            each.failure = str(error)
    finally:
        contender.stop()
    return figures


def _case(model: str, rate_mbps: float, goodput: float, communication_s: float, figures: dict[str, Figures]) -> Case:
    case = Case(
        f"{model} at {rate_mbps} Mbit/s",
        _least_step_s(MODELS[model](), figures["compute"].median_s, figures["communication"].median_s),
        f"both alone, in the same run, in the best order that the model's layers allow; "
        f"the links allow {communication_s:.2f} s ({goodput:.0f} Mbit/s)",
        figures,
    )
    case.at_most("step / best order", case.over_bound("byteps"), 1.10)
    longer = max(("compute", "communication"), key=lambda mode: figures[mode].median_s or 0.0)
    case.at_most("step / max(compute, communication)", case.ratio("byteps", longer), 1.10)
    gain = case.ratio("byteps, no priority", "byteps")
    if gain:
        case.notes["faster by priority"] = f"{100 * (gain - 1):.1f} %"
    return case


def _least_step_s(layers: list[Layer], compute_s: float | None, communication_s: float | None) -> float | None:
    if compute_s is None or communication_s is None:
        return None
    work = sum(layer.work for layer in layers)
    elements = sum(layer.elements for layer in layers)
    return overlap_bound_s(
        [layer.work / work * compute_s * FORWARD_PART for layer in layers],
        [layer.work / work * compute_s * (1 - FORWARD_PART) for layer in layers],
        [layer.elements / elements * communication_s for layer in layers],
    )
