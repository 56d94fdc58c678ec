"""Collectives of torch.distributed on one machine: the backend byteps beside gloo."""

from benchmarks.harness.alternate import Figures, alternate_all
from benchmarks.harness.results import Case, Recorder
from benchmarks.lab import Lab
from benchmarks.peers import launch
from benchmarks.peers.testbeds import OnOneHost

TITLE = "One machine: collectives of torch.distributed"
DEADLINE_S = 900

SMALL_BYTES = 4 << 10
SIZES = (SMALL_BYTES, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
CALL_BYTES = 16 << 20  # of a turn: as many calls as it takes, up to
MOST_CALLS = 300
MANY = 1000
BYTEPS, CORE = "byteps", "byteps, core"
NAMES = {SMALL_BYTES: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB", 64 << 20: "64 MiB"}


def run(recorder: Recorder) -> None:
    for ranks in (2, 4):
        with Lab([1000]) as lab:
            testbed = OnOneHost(lab, ranks)
            recorder.add(_all_reduce(testbed))
            for collective in ("broadcast", "all_gather"):
                for case in _collective(testbed, collective):
                    recorder.add(case)
            recorder.add(_many(testbed))


def _all_reduce(testbed: OnOneHost) -> Case:
    contenders = [*_backends(testbed), launch.byteps(testbed, CORE)]
    request = {"collective": "all_reduce", "bytes": SMALL_BYTES, "calls": MOST_CALLS}
    figures = alternate_all(contenders, {"": request}, turns=9, deadline_s=90)[""]
    case = Case(f"{testbed.ranks} ranks, all_reduce of 4 KiB", None, "", figures)
    case.at_most("time / the core's push_pull", case.ratio(BYTEPS, CORE), 1.5)
    case.at_least("speed / gloo's", case.ratio("gloo", BYTEPS), 1.0)
    return case


def _collective(testbed: OnOneHost, collective: str) -> list[Case]:
    requests = {
        NAMES[size]: {
            "collective": collective,
            "bytes": size,
            "calls": max(1, min(MOST_CALLS, CALL_BYTES // size)),
        }
        for size in SIZES
    }
    all_figures = alternate_all(_backends(testbed), requests, turns=7, deadline_s=200)
    cases = []
    for size, figures in all_figures.items():
        case = Case(f"{testbed.ranks} ranks, {collective} of {size}", None, "", figures)
        case.at_least("speed / gloo's", case.ratio("gloo", BYTEPS), 1.0)
        cases.append(case)
    return cases


def _many(testbed: OnOneHost) -> Case:
    """Many small tensors, all started before the first is waited for."""
    request = {"collective": "all_reduce", "bytes": SMALL_BYTES, "tensors": MANY, "calls": 1}
    contenders = [*_backends(testbed), launch.byteps(testbed, CORE)]
    figures: dict[str, Figures] = alternate_all(contenders, {"": request}, turns=7, deadline_s=120)[""]
    case = Case(f"{testbed.ranks} ranks, {MANY} all_reduces of 4 KiB at once", None, "", figures)
    case.at_least("speed / gloo's", case.ratio("gloo", BYTEPS), 1.0)
    for name in figures:
        if median := case.median_s(name):
            case.notes[f"{name}: tensors per second"] = round(MANY / median)
    return case


def _backends(testbed: OnOneHost) -> list[launch.Contender]:
    return [launch.c10d(testbed, "byteps", BYTEPS), launch.c10d(testbed, "gloo", "gloo")]
