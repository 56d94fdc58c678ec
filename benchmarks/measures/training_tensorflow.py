"""Keras training steps on one machine and in the lab, compared with MultiWorkerMirroredStrategy."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.bounds import placement_bound_s
from benchmarks.harness.alternate import Figures, alternate
from benchmarks.harness.contender import Step
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.lab.iperf import best_share
from benchmarks.measures.shapes import bytes_per_s
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts, OnOneHost, Testbed

TITLE = "Training with Keras: steps beside MultiWorkerMirroredStrategy"
DEADLINE_S = 1200

PEER, PEER_LOOP = "MWMS, fit", "MWMS, own loop"
OPTIMIZER, TAPE = "DistributedOptimizer, fit", "DistributedGradientTape, own loop"
NOTHING, NOTHING_LOOP = "fit, no gradients sent", "own loop, no gradients sent"
METHODS = {
    PEER: "mwms",
    PEER_LOOP: "mwms-loop",
    OPTIMIZER: "byteps",
    TAPE: "tape",
    NOTHING: "nothing",
    NOTHING_LOOP: "nothing-loop",
}
METHODS_IN_THE_LAB = {name: method for name, method in METHODS.items() if name != NOTHING_LOOP}
PEERS = (PEER, PEER_LOOP)  # the faster one is what ours is compared with
OURS = {OPTIMIZER: NOTHING, TAPE: NOTHING_LOOP}  # and the same steps with no gradients sent

WEIGHTS_DIFFER = 1e-5  # maximum difference after the same steps by different methods

RATE_MBPS, WORKERS, SERVERS = 200, 4, 4
MLP = {"kind": "mlp", "width": 1024, "layers": 8}  # 34 MB of gradients
SMALL_BATCH = 8

# Width and layers of transformers, from 1 to 79 MB of gradients. One image of 64 patches a step:
# few, so that communication matters.
SWEEP = ((64, 2), (128, 4), (256, 4), (512, 6))
MANY_MEGABYTES = 30  # then steps are long, and a turn has fewer of them
MLP_ON_ONE_MACHINE = {"kind": "mlp", "width": 1024, "layers": 4}


def run(recorder: Recorder) -> None:
    for width, layers in SWEEP:
        model = transformer(width, layers)
        name = f"Transformer of {megabytes(model):.0f} MB, 2 ranks on one machine"
        recorder.add(on_one_machine(name, model, batch=1))
    name = f"MLP of {megabytes(MLP_ON_ONE_MACHINE):.0f} MB, 2 ranks on one machine"
    recorder.add(on_one_machine(name, MLP_ON_ONE_MACHINE, batch=SMALL_BATCH))
    with Lab([RATE_MBPS] * (WORKERS + SERVERS)) as lab:
        rate = bytes_per_s(RATE_MBPS * best_share(lab))
        bound_s = placement_bound_s(1e6 * megabytes(MLP), [rate] * WORKERS, [rate] * SERVERS)
        recorder.add(in_the_lab(OnHosts(lab, WORKERS, SERVERS), MLP, bound_s))


def transformer(width: int, layers: int) -> dict[str, Any]:
    sizes = {"width": width, "layers": layers, "heads": 4, "patches": 64, "features": 768, "classes": 1000}
    return {"kind": "transformer", **sizes}


def megabytes(model: Mapping[str, Any]) -> float:
    """Returns the size of all gradients without the biases."""
    width, layers = model["width"], model["layers"]
    if model["kind"] == "mlp":
        return float(4e-6 * layers * width * width)
    return float(4e-6 * (12 * layers * width * width + width * (model["features"] + model["classes"])))


def on_one_machine(name: str, model: Mapping[str, Any], batch: int) -> Case:
    calls = 20 if megabytes(model) < MANY_MEGABYTES else 6
    with Lab([1000]) as lab:
        figures = _steps(OnOneHost(lab, 2), METHODS, model, batch, calls=calls, turns=7, deadline_s=200)
    case = Case(name, None, "", figures)
    peer = _fastest(case, PEERS)
    of_peer = _overhead_s(case, peer, NOTHING if peer == PEER else NOTHING_LOOP)
    for ours, nothing in OURS.items():
        overhead = _overhead_s(case, ours, nothing)
        case.at_least(f"speed / {peer}: {ours}", case.ratio(peer, ours), 1.0)
        case.at_most(
            f"time beyond no gradients sent / that of {peer}: {ours}",
            max(0.0, overhead) / of_peer if overhead is not None and of_peer else None,
            1.0,
        )
    case.notes |= {
        f"ms of a step beyond no gradients sent: {name}": round(1e3 * seconds, 2)
        for name, nothing in {PEER: NOTHING, PEER_LOOP: NOTHING_LOOP, **OURS}.items()
        if (seconds := _overhead_s(case, name, nothing)) is not None
    }
    _compare_weights(case)
    return case


def in_the_lab(testbed: Testbed, model: Mapping[str, Any], bound_s: float | None) -> Case:
    figures = _steps(testbed, METHODS_IN_THE_LAB, model, SMALL_BATCH, calls=4, turns=5, deadline_s=500)
    name = f"MLP of {megabytes(model):.0f} MB, {WORKERS} workers, {SERVERS} servers, {RATE_MBPS} Mbit/s"
    case = Case(name, bound_s, "communication alone, with the servers", figures)
    peer = _fastest(case, PEERS)
    for ours in OURS:
        case.at_least(f"speed / {peer}: {ours}", case.ratio(peer, ours), 1.3)
    _compare_weights(case)
    return case


def _steps(
    testbed: Testbed,
    methods: Mapping[str, str],
    model: Mapping[str, Any],
    batch: int,
    *,
    calls: int,
    turns: int,
    deadline_s: float,
) -> dict[str, Figures]:
    contenders = [launch.keras_training(testbed, method, name) for name, method in methods.items()]
    return alternate(contenders, {"model": model, "batch": batch, "calls": calls}, turns=turns, deadline_s=deadline_s)


def _fastest(case: Case, names: Sequence[str]) -> str:
    return min(names, key=lambda name: case.median_s(name) or float("inf"))


def _overhead_s(case: Case, name: str, nothing: str) -> float | None:
    """Returns the overhead of a step over a step without gradients sent."""
    with_gradients, without = case.median_s(name), case.median_s(nothing)
    return with_gradients - without if with_gradients and without else None


def _compare_weights(case: Case) -> None:
    """Checks that all ranks of all methods that send gradients have the same weights."""
    sending = [each.steps for name, each in case.figures.items() if name not in OURS.values() and each.steps]
    turns = zip(*sending, strict=False)  # some methods may have fewer
    case.at_most("largest difference between weights", max(map(_difference, turns), default=None), WEIGHTS_DIFFER)
    if NOTHING in case.figures and (alone := case.figures[NOTHING].steps):
        case.notes["largest difference between weights where no gradients are sent"] = _difference([alone[0]])


def _difference(steps: Sequence[Step]) -> float:
    weights = [rank["weights"] for step in steps for rank in step.ranks]
    return max(max(values) - min(values) for values in zip(*weights, strict=True))
