"""Runs every test of the project, or the parts named as arguments, and counts them.

    tools/run_tests.py [release] [some-seeds] [simulator] [core] [python] [benchmarks] [asan-ubsan] [tsan]

"core" is the part of "python" that needs PyTorch at most, neither root nor other launchers, and few
minutes; "some-seeds" is a part of "simulator". `make test` runs release, some-seeds and core. With no
argument all other parts run, as in `make test-all`.

Ends with a table, the skipped tests with their reasons, and one line "N passed, N failed, N
skipped". The exit code is 0 only if nothing failed and every skip is one that
tests/expected_skips.txt allows. Logs of the single test programs appear as they run; the JUnit
files of the last run stay in build/test-results/.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-results"
COMMAND_LIMIT_S = 3600  # a last resort: single tests have limits of their own
PYTEST_JOBS = 2  # tests of several processes spend most of their time waiting for each other
CTEST_JOBS = 3  # so do those of several threads


@dataclass
class Outcome:
    """The results of one part of the suite."""

    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)  # (test, reason)
    seconds: float = 0.0

    def add_junit(self, path: Path) -> None:
        for case in ET.parse(path).getroot().iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            skipped = case.find("skipped")
            failed = [*case.iter("failure"), *case.iter("error")]
            if failed:
                self.failures.append(f"{name}: {excerpt(failed[0].get('message') or '')}")
            elif skipped is not None:
                self.skips.append((name, reason_of(skipped)))
            elif case.get("status") != "notrun":
                self.passed += 1

    def add_pytest(self, succeeded: bool, *names: str) -> None:
        """Adds the results of pytest. A failed run without a failed test is a failure, too."""
        for name in names:
            junit = RESULTS / f"{name}.xml"
            if junit.exists():
                self.add_junit(junit)
            else:
                self.failures.append(f"pytest wrote no {junit.name}: see above")
        if not succeeded and not self.failures:
            self.failures.append("pytest: see above")


def excerpt(message: str) -> str:
    """The beginning and the end of a message, on one line: CI shows only a part of a long log."""
    line = " ".join(message.split())
    return line if len(line) <= 800 else f"{line[:300]} [...] {line[-500:]}"


def reason_of(skipped: ET.Element) -> str:
    """The words of the test; GoogleTest puts "file:line" on a line before them."""
    lines = (skipped.get("message") or "no reason given").splitlines()
    return " ".join(lines[1:] if len(lines) > 1 and re.search(r":\d+$", lines[0]) else lines)


def succeeds(*command: str | Path) -> bool:
    print("+", *command, flush=True)
    try:
        return subprocess.run(command, cwd=ROOT, check=False, timeout=COMMAND_LIMIT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error, flush=True)
        return False


def build(preset: str, *settings: str) -> bool:
    return succeeds("cmake", "--preset", preset, *settings) and succeeds("cmake", "--build", "--preset", preset)


def run_cpp(preset: str) -> Outcome:
    outcome = Outcome()
    if not build(preset):
        outcome.failures.append(f"build of preset {preset}")
        return outcome
    cases_of = ROOT / "build" / preset / "test-results"  # cmake/cpp_tests.cmake
    programs = RESULTS / f"{preset}-programs.xml"  # JUnit by ctest, one case a program
    shutil.rmtree(cases_of, ignore_errors=True)
    succeeds("ctest", "--preset", preset, "-j", str(CTEST_JOBS), "--output-junit", programs)
    if not programs.exists():
        outcome.failures.append(f"ctest of preset {preset}")
        return outcome
    for program in ET.parse(programs).getroot().iter("testcase"):
        name = str(program.get("name"))
        failures_before = len(outcome.failures)
        if (cases_of / f"{name}.xml").exists():
            outcome.add_junit(cases_of / f"{name}.xml")
        elif program.get("status") == "run":  # a program without GoogleTest
            outcome.passed += 1
        # A crash, a time-out, or a sanitizer's report after the last test: the program failed, no
        # case of it did.
        if program.get("status") != "run" and len(outcome.failures) == failures_before:
            outcome.failures.append(f"{name} of preset {preset} as a whole")
    if not outcome.passed and not outcome.failures:
        outcome.failures.append(f"preset {preset} ran no test")
    return outcome


def run_benchmarks() -> Outcome:
    """Compiles the benchmarks, which are not run as tests."""
    if build("release", "-DBYTEPS_BUILD_BENCHMARKS=ON"):
        return Outcome(passed=1)
    return Outcome(failures=["build of the C++ benchmarks: see above"])


def run_simulator(seeds: int) -> Outcome:
    program = ROOT / "build/release/bps_sim"
    if (
        build("release")
        and succeeds(program, "--seeds", str(seeds), "--jobs", "2")
        and succeeds(program, "--elastic", "--seeds", str(seeds), "--jobs", "2")
    ):
        return Outcome(passed=1)
    return Outcome(failures=["bps_sim or its build: see above"])


def pytest(name: str, *arguments: str) -> list[str]:
    """The command. Its JUnit file has this name."""
    settings = ("-q", f"--junitxml={RESULTS / name}.xml", "--durations=15", "--durations-min=5")
    return [sys.executable, "-m", "pytest", *settings, *arguments]


# The promises of the README, in files that need neither TensorFlow nor MXNet, as little time as
# possible.
CORE = (
    "tests/python",
    "tests/frameworks/test_conformance.py",
    "tests/frameworks/test_runtime.py",
    "tests/frameworks/test_torch.py",
    "tests/frameworks/test_torch_modules.py",
    "tests/frameworks/test_torch_process_group.py",
    "tests/integration/test_disagreement.py",
    "tests/integration/test_elastic.py::test_workers_are_lost_and_come_all_the_time",
    "tests/integration/test_lost_connections.py",
    "tests/integration/test_lost_processes.py",
    "tests/integration/test_lost_scheduler.py::test_killed_with_a_server",
    "tests/integration/test_lost_servers.py::test_killed_at_any_instant_one_after_the_other",
    "tests/integration/test_settings.py",
    "tests/integration/test_strangers.py",
)
# Left to `make test-all`: torch.library's own checks of its operators, and whole jobs, as the cases of
# one job share it: deselecting a single case saves nothing.
NOT_CORE_NAMES = (
    "passes_opcheck",
    "meet_at_a_port",
    "(test_torch and 1-ranks)",
    "torch_library-2-ranks",
    "torch_process_group_training-4-ranks",
    "others_train[hook]",
    "others_train[library]",
    "others_train[metric]",
    "others_train[sync_batch_norm]",
)
NOT_CORE = ("-k", " and ".join(f"not {name}" for name in NOT_CORE_NAMES))
PYTEST_IN_PARALLEL = (f"--numprocesses={PYTEST_JOBS}", "--dist=loadfile")


def run_core() -> Outcome:
    outcome = Outcome()
    if not build("release"):
        outcome.failures.append("build of preset release")
        return outcome
    succeeded = succeeds(*pytest("core", *PYTEST_IN_PARALLEL, *NOT_CORE, *CORE))
    outcome.add_pytest(succeeded, "core")
    return outcome


def run_python() -> Outcome:
    outcome = Outcome()
    # The module that Python imports is written by the build of the preset "release".
    if not build("release"):
        outcome.failures.append("build of preset release")
        return outcome

    # One virtual machine runs at a time, on one processor: beside all else, or it would be waited
    # for in the end.
    in_machines = pytest("rdma", "tests/rdma")
    print("+", *in_machines, "(shown when it is done)", flush=True)
    log = RESULTS / "rdma.log"
    with log.open("w") as output, subprocess.Popen(in_machines, cwd=ROOT, stdout=output, stderr=output) as machines:
        succeeded = succeeds(*pytest("python", *PYTEST_IN_PARALLEL, "--ignore=tests/rdma", "tests"))
        try:
            succeeded &= machines.wait(COMMAND_LIMIT_S) == 0
        except subprocess.TimeoutExpired as error:
            machines.kill()
            outcome.failures.append(str(error))
    print(log.read_text(), flush=True)

    outcome.add_pytest(succeeded, "python", "rdma")
    return outcome


PARTS: dict[str, Callable[[], Outcome]] = {
    "release": lambda: run_cpp("release"),
    "some-seeds": lambda: run_simulator(2000),
    "simulator": lambda: run_simulator(7000),
    "core": run_core,
    "python": run_python,
    "benchmarks": run_benchmarks,
    "asan-ubsan": lambda: run_cpp("asan-ubsan"),
    "tsan": lambda: run_cpp("tsan"),
}


def expected_skips() -> list[re.Pattern[str]]:
    lines = (ROOT / "tests" / "expected_skips.txt").read_text().splitlines()
    return [re.compile(line.split("  # ")[0]) for line in lines if line and not line.startswith("#")]


def report(outcomes: dict[str, Outcome]) -> int:
    """Prints the summary; returns the exit code."""
    print(f"\n{'part':<12}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}")
    for name, outcome in outcomes.items():
        counts = (outcome.passed, len(outcome.failures), len(outcome.skips))
        print(f"{name:<12}{counts[0]:>8}{counts[1]:>8}{counts[2]:>8}{outcome.seconds:>9.0f}")

    for name, outcome in outcomes.items():
        for failure in outcome.failures:
            print(f"FAILED {name}: {failure}")
    tests_of: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes.values():
        for test, reason in outcome.skips:
            tests_of[reason].append(test)
    allowed = expected_skips()
    unexpected = [reason for reason in tests_of if not any(pattern.search(reason) for pattern in allowed)]
    for reason, tests in tests_of.items():
        verdict = "skipped, NOT in tests/expected_skips.txt" if reason in unexpected else "skipped"
        print(f"{verdict}: {len(tests)} x {reason} (such as {tests[0]})")

    passed = sum(outcome.passed for outcome in outcomes.values())
    failed = sum(len(outcome.failures) for outcome in outcomes.values())
    skipped = sum(len(outcome.skips) for outcome in outcomes.values())
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or unexpected else 0


def main(names: list[str]) -> int:
    if unknown := set(names) - set(PARTS):
        print(
            f"unknown part: {', '.join(sorted(unknown))}: expected some of {', '.join(PARTS)}",
            file=sys.stderr,
        )
        return 2
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    outcomes: dict[str, Outcome] = {}
    for name in [part for part in PARTS if (part in names if names else part not in ("some-seeds", "core"))]:
        print(f"\n=== {name}", flush=True)
        started = time.monotonic()
        outcomes[name] = PARTS[name]()
        outcomes[name].seconds = time.monotonic() - started
    return report(outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
