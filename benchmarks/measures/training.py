"""PyTorch training steps in the lab and on one machine, compared with torch's DDP over gloo."""

from collections.abc import Mapping
from typing import Any

from benchmarks.bounds import placement_bound_s
from benchmarks.harness.alternate import alternate
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.lab.iperf import best_share
from benchmarks.measures.shapes import bytes_per_s
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts, OnOneHost, Testbed

TITLE = "Training with PyTorch: steps beside DDP over gloo"
DEADLINE_S = 1200

GLOO, BACKEND, OPTIMIZER, CROSS = "DDP, gloo", "DDP, byteps", "DistributedOptimizer", "CrossBarrier"
METHODS = {GLOO: "ddp-gloo", BACKEND: "ddp-byteps", OPTIMIZER: "optimizer", CROSS: "cross-barrier"}

BUCKETS, MEET, DDP_ALONE = "DistributedOptimizer, buckets", "no gradients sent", "DDP, no gradients sent"
COMMUNICATION_MATTERS = 1.25  # ratio of gloo's steps to steps without gradients sent
METHODS_ON_ONE_MACHINE = {
    GLOO: "ddp-gloo",
    BACKEND: "ddp-byteps",
    BUCKETS: "optimizer-buckets",
    MEET: "meet",
    DDP_ALONE: "ddp-nothing",
}

RATE_MBPS, WORKERS, SERVERS = 200, 4, 4
# 32 MiB of gradients each. The second one computes for about as long as it communicates, on two
# cores for four ranks.
BOUND_BY_NETWORK = {"kind": "mlp", "width": 1024, "layers": 8, "batch": 8}
BALANCED = {"kind": "mlp", "width": 1024, "layers": 8, "batch": 256}

# Width and layers of transformers, from 1 to 85 MB of gradients. One text of 64 tokens a step: few,
# so that communication matters.
SWEEP = ((64, 2), (128, 4), (256, 4), (512, 6))


def run(recorder: Recorder) -> None:
    with Lab([RATE_MBPS] * (WORKERS + SERVERS)) as lab:
        goodput = RATE_MBPS * best_share(lab)
        testbed = OnHosts(lab, WORKERS, SERVERS)
        for title, model in (("little compute", BOUND_BY_NETWORK), ("as much compute", BALANCED)):
            recorder.add(_in_the_lab(testbed, title, model, goodput))
    for width, layers in SWEEP:
        with Lab([1000]) as lab:
            recorder.add(_on_one_machine(OnOneHost(lab, 2), width, layers))


def _in_the_lab(testbed: Testbed, title: str, model: Mapping[str, Any], goodput: float) -> Case:
    figures = alternate(
        [launch.training(testbed, method, name) for name, method in METHODS.items()],
        {"model": model, "calls": 5},
        turns=5,
        deadline_s=400,
    )
    size_bytes = 4 * model["layers"] * (model["width"] ** 2 + model["width"])
    bound_s = placement_bound_s(size_bytes, [bytes_per_s(goodput)] * WORKERS, [bytes_per_s(goodput)] * SERVERS)
    case = Case(
        f"{WORKERS} workers, {SERVERS} servers, {RATE_MBPS} Mbit/s, {title}",
        bound_s,
        "communication alone, with the servers",
        figures,
    )
    if model is BOUND_BY_NETWORK:
        case.at_least("speed / DDP over gloo: backend byteps", case.ratio(GLOO, BACKEND), 1.35)
        case.at_least("speed / DDP over gloo: DistributedOptimizer", case.ratio(GLOO, OPTIMIZER), 1.40)
    case.at_least("speed of CrossBarrier / DistributedOptimizer's", case.ratio(OPTIMIZER, CROSS), 0.98)
    return case


def _on_one_machine(testbed: Testbed, width: int, layers: int) -> Case:
    model = {
        "kind": "gpt2",
        "width": width,
        "layers": layers,
        "heads": 4,
        "vocabulary": 4096,
        "context": 64,
        "batch": 1,
    }
    contenders = [launch.training(testbed, method, name) for name, method in METHODS_ON_ONE_MACHINE.items()]
    figures = alternate(contenders, {"model": model, "calls": 10}, turns=9, deadline_s=200)
    megabytes = 4e-6 * (layers * 12 * width**2 + (4096 + 64) * width)
    case = Case(f"GPT-2 of {megabytes:.0f} MB, 2 ranks on one machine", None, "", figures)
    for name, without in ((BACKEND, DDP_ALONE), (BUCKETS, MEET)):
        if (case.ratio(GLOO, without) or 0) >= COMMUNICATION_MATTERS:
            case.at_least(f"speed / DDP over gloo: {name}", case.ratio(GLOO, name), 1.15)
    return case
