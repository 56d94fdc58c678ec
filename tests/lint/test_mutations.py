"""The patches of tests/mutations/ plant faults in this tree, and tools/run_mutations.py loses none."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from support.tool_module import tool_module

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests" / "mutations").glob("*.patch"))
SHELLS = ("csrc/worker/", "csrc/summation/", "csrc/cluster/", "csrc/node/", "csrc/elastic/")
LEAST_PATCHES, LEAST_IN_SHELLS = 30, 20


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    return tool_module("run_mutations")


def changed_files(patch: Path) -> list[str]:
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE)


def test_every_patch_applies(runner: ModuleType) -> None:
    wrong = []
    for patch in PATCHES:
        command = ["git", "apply", "--check", runner.CONTEXT, patch]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        wrong += [f"{patch.name}: {done.stderr.strip()}"] if done.returncode else []
    assert not wrong, "plant the same fault in the new code:\n" + "\n".join(wrong)


def test_every_patch_says_its_fault(runner: ModuleType) -> None:
    faults = [runner.fault_of(patch) for patch in PATCHES]
    assert len(set(faults)) == len(faults)
    numbers = sorted((patch.stem.split("-")[0] for patch in PATCHES), key=int)
    assert numbers == [f"{number:02d}" for number in range(1, len(PATCHES) + 1)]


def test_faults_are_in_the_runtime_and_most_in_its_shells() -> None:
    files = [changed_files(patch) for patch in PATCHES]
    assert len(PATCHES) >= LEAST_PATCHES and all(len(names) == 1 for names in files)
    in_shells = [name for (name,) in files if name.startswith(SHELLS)]
    assert len(in_shells) >= LEAST_IN_SHELLS
    # The simulator has a transport of its own, which carries connections of transport/resume. C++ tests have
    # simulated network cards for those of transport/rdma.
    others = ("csrc/protocol/", "csrc/transport/resume/", "csrc/transport/rdma/")
    assert all(name.startswith((*SHELLS, *others)) for (name,) in files)


def test_patches_are_selected_by_name_and_number(runner: ModuleType) -> None:
    assert runner.select([]) == PATCHES
    first = PATCHES[0]
    for name in (first.stem, first.stem.split("-")[0], first.stem.split("-", 1)[1], str(first)):
        assert runner.select([name]) == [first]
    with pytest.raises(runner.CannotTestError, match="no-such"):
        runner.select(["no-such"])


SEEDS = {
    "exit 0": "",
    "echo FINDING lost; echo 'replay: bps_sim --seed 47 --trace'; exit 1": "seed 47",
    "echo 'replay: bps_sim --seed 47 --trace'; sleep 60": "seed 47",
    "kill -SEGV $$": "exit code -11",
    "sleep 60": "hangs",
}
TESTS = {
    "exit 0": "",
    "echo '[  FAILED  ] Sum.IsRight (3 ms)'; exit 1": "protocol_test: Sum.IsRight",
    "echo '[ RUN      ] Sum.IsRight'; kill -ABRT $$": "protocol_test: Sum.IsRight (exit code -6)",
    "echo '[ RUN      ] Sum.IsRight'; sleep 60": "protocol_test: Sum.IsRight (hangs)",
}


@pytest.mark.parametrize(
    ("finder", "script", "found"),
    [
        *(("found_by_seeds", script, found) for script, found in SEEDS.items()),
        *(("found_by_tests", script, found) for script, found in TESTS.items()),
    ],
)
def test_what_a_program_finds(runner: ModuleType, tmp_path: Path, finder: str, script: str, found: str) -> None:
    tree = runner.Tree(tmp_path, jobs=1, programs=())
    for name in (runner.SIMULATOR, *runner.TEST_PROGRAMS):
        program = tree.program(name)
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/bash\n{script}\n")
        program.chmod(0o755)
    limit_s = 1 if "hangs" in found else 60
    options = argparse.Namespace(seeds=10, jobs=1, seeds_limit=limit_s, test_limit=limit_s)
    assert getattr(runner, finder)(tree, options) == found


def test_a_fault_counts_as_found_by_one_of_both(runner: ModuleType) -> None:
    rows = [
        runner.Row("01-a", "a", "seed 7", ""),
        runner.Row("02-b", "b", "", "Sum"),
        runner.Row("03-c", "c", "", None),
    ]
    assert [row.is_found for row in rows] == [True, True, False]
    assert runner.summary(rows) == "3 faults: 1 found by seeds, 1 by C++ tests, 2 by one of both"
    assert runner.table(rows).splitlines()[-1] == "| 03-c | c | no | not run |"
