"""The benchmarks' own arithmetic and harness: what they report must be what happened."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bounds import overlap_bound_s, parameter_server_bound_s, placement_bound_s
from benchmarks.harness.alternate import Figures, alternate, alternate_all
from benchmarks.harness.contender import Contender, ContenderError, Spawn, SpawnPlain, Started
from benchmarks.harness.results import Case
from benchmarks.lab import Lab
from benchmarks.models import MODELS
from benchmarks.peers import testbeds
from benchmarks.peers.testbeds import Cores, OnHosts, OnOneHost, pin
from benchmarks.report.page import write_page
from benchmarks.report.table import rows_of

ROOT = Path(__file__).resolve().parents[2]
RATES = st.lists(st.floats(1.0, 100.0), min_size=2, max_size=8)
FEW_RATES = st.lists(st.floats(1.0, 100.0), max_size=8)


@pytest.mark.parametrize("workers", range(2, 9))
def test_with_equal_rates_the_bound_is_the_papers(workers: int) -> None:
    for servers in range(workers + 1):
        paper_s = 2 * workers * (workers - 1) / (workers**2 + servers * workers - 2 * servers)
        assert placement_bound_s(1.0, [1.0] * workers, [1.0] * servers) == pytest.approx(paper_s)


@given(RATES, FEW_RATES)
def test_a_bound_is_never_above_a_ring_or_a_parameter_server(workers: list[float], servers: list[float]) -> None:
    bound_s = placement_bound_s(1.0, workers, servers)
    ring_s = 2 * (len(workers) - 1) / len(workers) / min(workers)
    assert bound_s <= ring_s * (1 + 1e-9)
    if servers:
        parameter_server_s = max(1 / min(workers), len(workers) / len(servers) / min(servers))
        assert bound_s <= parameter_server_s * (1 + 1e-9)


@given(RATES, FEW_RATES, st.floats(1.0, 100.0))
def test_another_server_never_raises_the_bound(workers: list[float], servers: list[float], more: float) -> None:
    assert placement_bound_s(1.0, workers, [*servers, more]) <= placement_bound_s(1.0, workers, servers) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "communication_s", "step_s"),
    [
        ([1.0], [2.0], [0.0], 3.0),
        ([1.0], [2.0], [4.0], 7.0),  # a single layer: no overlap
        ([1.0, 1.0], [2.0, 2.0], [0.0, 2.0], 6.0),  # hidden by backward
        ([1.0, 1.0], [2.0, 2.0], [0.0, 3.0], 6.0),  # and by the first layer's forward
        ([1.0, 1.0], [2.0, 2.0], [0.0, 4.0], 7.0),
        # The first layer overtakes the rest of the last one.
        ([1.0, 1.0], [2.0, 2.0], [1.0, 4.0], 8.0),
        ([0.0, 0.0, 9.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.5], 10.5),  # the last two in backward
    ],
)
def test_bound_of_overlap(
    forward_s: list[float], backward_s: list[float], communication_s: list[float], step_s: float
) -> None:
    assert overlap_bound_s(forward_s, backward_s, communication_s) == pytest.approx(step_s)


def test_few_servers_are_the_limit_of_a_parameter_server() -> None:
    assert parameter_server_bound_s(8.0, workers=4, servers=1, bytes_per_s=2.0) == 16.0
    assert parameter_server_bound_s(8.0, workers=4, servers=8, bytes_per_s=2.0) == 4.0


@pytest.mark.parametrize(
    ("name", "elements", "tensors"), [("ResNet-50", 25_557_032, 161), ("GPT-2 small", 124_439_808, 148)]
)
def test_models_have_the_published_number_of_parameters(name: str, elements: int, tensors: int) -> None:
    layers = MODELS[name]()
    assert sum(layer.elements for layer in layers) == elements
    assert sum(len(layer.shapes) for layer in layers) == tensors


def ranks(body: str, count: int = 2, barrier: str = "None") -> Spawn:
    """Starts ranks of a program whose step is `body`."""
    program = f"""
        import os, sys
        from benchmarks.harness.rank import serve
        rank = int(sys.argv[1])
        def step(request):
            {body}
        serve(rank, step, lambda: {barrier})
    """

    def spawn(extra: Mapping[str, str], output: Any) -> Started:
        command = [sys.executable, "-c", textwrap.dedent(program)]
        environment = {"PYTHONPATH": str(ROOT), **extra}
        processes = [
            subprocess.Popen([*command, str(rank)], env=environment, stdout=output, stderr=output)
            for rank in reversed(range(count))
        ]
        return Started(processes, count)

    return spawn


def test_a_step_reaches_every_rank_and_their_answers_come_in_order() -> None:
    contender = Contender("echo", ranks('return {"rank": rank, "got": request["bytes"]}'))
    contender.start()
    try:
        step = contender.step({"bytes": 7})
        pids = contender.rank_pids
    finally:
        contender.stop()
    assert [(answer["rank"], answer["got"]) for answer in step.ranks] == [(0, 7), (1, 7)]
    assert step.seconds >= max(answer["end"] - answer["begin"] for answer in step.ranks)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_clock_starts_when_the_barrier_is_passed() -> None:
    barrier = 'globals().__setitem__("passed", __import__("time").monotonic())'
    contender = Contender("met", ranks('return {"passed": passed}', barrier=barrier))
    contender.start()
    try:
        steps = [contender.step({}), contender.step({})]
    finally:
        contender.stop()
    for answer in (answer for step in steps for answer in step.ranks):
        assert answer["passed"] <= answer["begin"] <= answer["end"]
    assert steps[0].ranks[0]["end"] < steps[1].ranks[0]["passed"]


def test_a_rank_that_ends_fails_the_step_with_what_it_wrote() -> None:
    contender = Contender("mortal", ranks('sys.exit("out of luck") if rank else __import__("signal").pause()'))
    contender.start()
    with pytest.raises(ContenderError, match="out of luck"):
        contender.step({})
    contender.stop()


def test_a_rank_that_hangs_is_killed_after_its_deadline() -> None:
    contender = Contender("hanging", ranks("import signal; signal.pause()"))
    contender.start()
    with pytest.raises(ContenderError, match="timed out"):
        contender.step({}, deadline_s=0.2)
    pids = contender.rank_pids
    contender.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_contenders_take_turns_and_one_that_fails_leaves_the_others() -> None:
    contenders = [
        Contender("sound", ranks("pass")),
        Contender("mortal", ranks('sys.exit(3) if request["calls"] else None')),
        Contender("slow", ranks("pass")),
    ]

    def fail(_: Mapping[str, str], __: Any) -> Started:
        raise OSError("no such program")

    contenders.insert(1, Contender("stillborn", fail))
    figures = alternate(contenders, {"calls": 2}, turns=3, fewer_turns={"slow": 1})
    assert [len(figures[name].seconds) for name in ("sound", "slow")] == [3, 1]
    assert figures["sound"].failure is None
    assert "no such program" in str(figures["stillborn"].failure)
    assert figures["mortal"].failure is not None
    assert figures["mortal"].median_s is None


def plain_loop(body: str) -> SpawnPlain:
    """A plain loop of two processes, with `calls`, `turns` and `rank`."""

    def spawn(request: Mapping[str, Any], turns: int, output: Any) -> Started:
        values = f"calls, turns = {request['calls']}, {turns}\n"
        processes = [
            subprocess.Popen([sys.executable, "-c", f"rank = {rank}\n{values}{body}"], stdout=output, stderr=output)
            for rank in range(2)
        ]
        return Started(processes, 2)

    return spawn


PRINT_TURNS = "if not rank: print(*[f'{0.5 * calls}' for _ in range(turns)], sep=chr(10))"


def test_plain_loops_run_before_and_after_the_turns_with_the_same_request() -> None:
    contender = Contender("slowed", ranks("pass"), plain_loop(f"print('a warning of the library')\n{PRINT_TURNS}"))
    figures = alternate([contender], {"calls": 4}, turns=2, plain_turns=3)["slowed"]
    assert figures.plain_loops == [[2.0] * 3] * 2
    assert figures.over_plain == pytest.approx(figures.median_s / 2.0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise SystemExit('no interface')", "no interface"),
        ("print(1.0)\nraise SystemExit(rank)", "ended with 1"),
        ("print('nothing')", "expected 2 lines with a number, got 0"),
    ],
)
def test_a_plain_loop_that_fails_is_named_and_leaves_its_contender_in(body: str, reason: str) -> None:
    figures = alternate([Contender("odd", ranks("pass"), plain_loop(body))], {"calls": 1}, turns=1, plain_turns=2)
    assert reason in str(figures["odd"].plain_failure)
    assert figures["odd"].over_plain is None
    assert len(figures["odd"].seconds) == 1


@pytest.mark.parametrize(
    ("figures", "cell"),
    [
        (Figures([1.0], [1.0]), ""),
        (Figures([1.2], [1.0], plain_loops=[[9.0, 1.0, 1.0], [2.0]]), "1.20"),
        (Figures([1.3], [1.0], plain_loops=[[1.0], [2.0]]), "1.30: UNFAIR, above 1.2"),
        (Figures([1.0], [1.0], plain_failure="gone\nlong story"), "plain loop failed: gone"),
    ],
)
def test_the_row_says_how_far_a_contender_is_above_its_plain_loop(figures: Figures, cell: str) -> None:
    case = Case("case", None, "", {"gloo": figures}).as_json() | {"load": 0.0}
    assert rows_of(case)[0][-1] == cell


def test_who_fails_one_request_has_failed_all_that_follow() -> None:
    mortal = Contender("mortal", ranks('sys.exit(3) if request["bytes"] == 2 and request["calls"] else None'))
    requests = {str(size): {"bytes": size, "calls": 1} for size in (1, 2, 3)}
    figures = alternate_all([mortal, Contender("sound", ranks("pass"))], requests, turns=1)
    assert [figures[name]["mortal"].failure is None for name in requests] == [True, False, False]
    assert [len(figures[name]["sound"].seconds) for name in requests] == [1, 1, 1]


def test_a_failed_contender_is_a_row_and_its_goals_are_missed() -> None:
    fast = Figures(seconds=[2.0, 1.0, 3.0], cpu_s=[1.0, 1.0, 4.0], machine_s=[2.0, 2.0, 5.0])
    case = Case("case", 1.6, "a bound", {"byteps": fast, "gloo": Figures(failure="gone\nlong story")}, gigabytes=0.5)
    case.at_most("time / bound", case.over_bound("byteps"), 1.3)
    case.at_least("speed / gloo's", case.ratio("gloo", "byteps"), 1.0)
    document = case.as_json() | {"load": 0.0}
    assert rows_of(document) == [
        ("byteps", "2.000 s", "1.250", "", "4.00", "6.00", "3", ""),
        ("gloo", "failed", "gone"),
    ]
    assert [goal["reached"] for goal in document["goals"]] == [True, False]


def test_the_page_of_no_results_is_a_page(tmp_path: Path) -> None:
    write_page(tmp_path, tmp_path / "report.html")
    assert "0 of 0 goals reached" in (tmp_path / "report.html").read_text()


def test_processes_are_pinned_where_the_testbed_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {4, 6})
    lab = Lab([1000] * 4)

    def cores_of(testbed: testbeds.Testbed, processes: int) -> list[str]:
        return [" ".join(pin(testbed, index)) for index in range(processes)]

    assert cores_of(OnOneHost(lab, 2), 2) == ["", ""]
    assert cores_of(OnOneHost(lab, 2, Cores.OWN), 2) == ["taskset -c 4", "taskset -c 6"]
    assert cores_of(OnOneHost(lab, 3, Cores.ONE), 3) == ["taskset -c 4"] * 3
    apart = OnHosts(lab, 2, 2, Cores.SERVERS_APART)
    assert cores_of(apart, 4) == ["taskset -c 4", "taskset -c 4", "taskset -c 6", "taskset -c 6"]
    with pytest.raises(ValueError, match="expected 3 cores, got 2"):
        OnOneHost(lab, 3, Cores.OWN)
