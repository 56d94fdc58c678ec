"""tools/run_tests.py must not lose a failure: it prints the last line of `make test`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from support.tool_module import tool_module

ROOT = Path(__file__).resolve().parents[2]

GTEST = """<testsuites><testsuite name="Sum">
  <testcase classname="Sum" name="good" status="run"/>
  <testcase classname="Sum" name="bad" status="run"><failure message="3 != 4"/></testcase>
  <testcase classname="Sum" name="off" status="notrun"/>
  <testcase classname="Sum" name="wide" status="run"><skipped message="sum_test.cc:7&#x0A;no AVX-512 here"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    return tool_module("run_tests")


def test_cases_of_a_junit_file_are_counted(runner: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "sum.xml").write_text(GTEST)
    outcome = runner.Outcome()
    outcome.add_junit(tmp_path / "sum.xml")
    assert (outcome.passed, outcome.failures) == (1, ["Sum.bad: 3 != 4"])
    assert outcome.skips == [("Sum.wide", "no AVX-512 here")]


@pytest.mark.parametrize(
    ("failures", "skips", "code", "line"),
    [
        ([], [], 0, "3 passed, 0 failed, 0 skipped"),
        (["Sum.bad"], [], 1, "3 passed, 1 failed, 0 skipped"),
        ([], [("Sum.wide", "no AVX-512 here")], 0, "3 passed, 0 failed, 1 skipped"),
        ([], [("Sum.lazy", "felt like it")], 1, "3 passed, 0 failed, 1 skipped"),
    ],
)
def test_last_line_and_exit_code(
    runner: ModuleType,
    capsys: pytest.CaptureFixture[str],
    failures: list[str],
    skips: list[tuple[str, str]],
    code: int,
    line: str,
) -> None:
    outcomes = {"a": runner.Outcome(1, failures, skips), "b": runner.Outcome(2)}
    assert runner.report(outcomes) == code
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_a_program_that_dies_is_a_failure(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cases before a crash or a sanitizer's report at exit may all have passed."""
    programs = '<testsuite><testcase name="sum" status="fail"/><testcase name="base" status="run"/></testsuite>'

    def ctest(*command: str | Path) -> bool:
        if command[0] == "ctest":
            (tmp_path / "tsan-programs.xml").write_text(programs)
        return command[0] != "ctest"

    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "succeeds", ctest)
    assert runner.run_cpp("tsan").failures == ["sum of preset tsan as a whole"]
