"""gluon training steps on one machine and in the lab, compared with MXNet's store dist_sync."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.bounds import placement_bound_s
from benchmarks.harness.alternate import Figures, alternate
from benchmarks.harness.contender import Contender, Step
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.lab.iperf import best_share
from benchmarks.measures.shapes import bytes_per_s
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnHosts, OnOneHost, Testbed

TITLE = "Training with MXNet: steps beside its own dist_sync"
DEADLINE_S = 900

OURS = {"DistributedTrainer": "trainer", "Trainer, dist_byteps": "kvstore"}
NOTHING = "no gradients sent"
# Process that updates weights.
UPDATES = {"workers": "dist_sync-workers", "servers": "dist_sync-servers"}

WEIGHTS_DIFFER = 1e-5  # maximum difference after the same steps by different methods

CNN = {"kind": "cnn", "channels": 32, "image": 28, "hidden": 128, "classes": 10}
MLP = {"kind": "mlp", "width": 1024, "layers": 4}
LARGE_MLP = {"kind": "mlp", "width": 1024, "layers": 8}
SMALL_BATCH = 8

RATE_MBPS, WORKERS, SERVERS = 200, 4, 4
UNIX_SOCKETS = {"DMLC_LOCAL": "1"}  # makes dist_sync faster on one machine; it leaves them in /tmp


def run(recorder: Recorder) -> None:
    for model, calls in ((CNN, 20), (MLP, 12), (LARGE_MLP, 6)):
        recorder.add(on_one_machine(model, calls))
    with Lab([RATE_MBPS] * (WORKERS + SERVERS)) as lab:
        rate = bytes_per_s(RATE_MBPS * best_share(lab))
        bound_s = placement_bound_s(1e6 * megabytes(LARGE_MLP), [rate] * WORKERS, [rate] * SERVERS)
        recorder.add(in_the_lab(OnHosts(lab, WORKERS, SERVERS), LARGE_MLP, bound_s))


def megabytes(model: Mapping[str, Any]) -> float:
    """Returns the size of all gradients without the biases."""
    if model["kind"] == "mlp":
        return float(4e-6 * model["layers"] * model["width"] ** 2)
    channels, hidden = model["channels"], model["hidden"]
    convolutions = 9 * (channels + channels**2 + 2 * channels**2 + 4 * channels**2)
    return float(4e-6 * (convolutions + hidden * (2 * channels * (model["image"] // 4) ** 2 + model["classes"])))


def on_one_machine(model: Mapping[str, Any], calls: int) -> Case:
    with Lab([1000]) as lab:
        testbed = OnOneHost(lab, 2)
        peers = _peers(testbed, (1, 2), UNIX_SOCKETS)
        contenders = [*peers, *_ours(testbed), launch.mxnet_training(testbed, "nothing", NOTHING)]
        figures = _steps(contenders, model, calls=calls, turns=7, deadline_s=200)
    name = f"{model['kind'].upper()} of {megabytes(model):.1f} MB, 2 ranks on one machine"
    return _case(Case(name, None, "", figures), [peer.name for peer in peers])


def in_the_lab(testbed: Testbed, model: Mapping[str, Any], bound_s: float | None) -> Case:
    peers = _peers(testbed, (testbed.servers,), {})
    contenders = [*peers, *_ours(testbed), launch.mxnet_training(testbed, "nothing", NOTHING)]
    figures = _steps(contenders, model, calls=4, turns=5, deadline_s=400)
    name = f"MLP of {megabytes(model):.0f} MB, {WORKERS} workers, {SERVERS} servers, {RATE_MBPS} Mbit/s"
    return _case(Case(name, bound_s, "communication alone, with the servers", figures), [peer.name for peer in peers])


def _peers(testbed: Testbed, servers: Sequence[int], settings: Mapping[str, str]) -> list[Contender]:
    """dist_sync in all its ways: the fastest one is what ours is compared with."""
    return [
        launch.mxnet_store(testbed, method, f"dist_sync, k = {number}, in {where}", number, settings)
        for number in servers
        for where, method in UPDATES.items()
    ]


def _ours(testbed: Testbed) -> list[Contender]:
    return [launch.mxnet_training(testbed, method, name) for name, method in OURS.items()]


def _steps(
    contenders: Sequence[Contender], model: Mapping[str, Any], *, calls: int, turns: int, deadline_s: float
) -> dict[str, Figures]:
    request = {"model": model, "batch": SMALL_BATCH, "calls": calls}
    return alternate(contenders, request, turns=turns, deadline_s=deadline_s)


def _case(case: Case, peers: Sequence[str]) -> Case:
    """Returns the case with its goals."""
    peer = min(peers, key=lambda name: case.median_s(name) or float("inf"))
    for ours in OURS:
        case.at_least(f"speed / {peer}: {ours}", case.ratio(peer, ours), 1.0)
    case.notes |= {
        f"ms of a step beyond no gradients sent: {name}": round(1e3 * (median - alone), 2)
        for name in (peer, *OURS)
        if (median := case.median_s(name)) and (alone := case.median_s(NOTHING))
    }
    _compare_weights(case)
    return case


def _compare_weights(case: Case) -> None:
    """Checks that all ranks of all methods have the same weights after each turn."""
    sending = [each.steps for name, each in case.figures.items() if name != NOTHING and each.steps]
    turns = zip(*sending, strict=False)  # some methods may have fewer
    case.at_most("largest difference between weights", max(map(_difference, turns), default=None), WEIGHTS_DIFFER)
    if alone := case.figures[NOTHING].steps:
        case.notes["largest difference between weights where no gradients are sent"] = _difference([alone[0]])


def _difference(steps: Sequence[Step]) -> float:
    weights = [rank["weights"] for step in steps for rank in step.ranks]
    return max(max(values) - min(values) for values in zip(*weights, strict=True))
