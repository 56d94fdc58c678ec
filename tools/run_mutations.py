"""Plants the faults of tests/mutations/ one after the other, and says which tests find them.

    tools/run_mutations.py [--seeds N] [--jobs N] [--skip-seeds] [--skip-tests] [PATCH ...]

Each patch is applied to a copy of the tree, built, and tested by the simulator and by the C++
tests. Prints a Markdown table. The exit code is 0 if every fault is found by at least one of the
two, 1 if not, and 2 if a patch does not apply or build, or if the tree fails without a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests" / "mutations"
SIMULATOR = "bps_sim"
# The quick ones first: later programs do not run once one has found the fault.
TEST_PROGRAMS = (
    "protocol_test",
    "summation_test",
    "worker_test",
    "cluster_test",
    "elastic_test",
    "node_test",
    "sim_test",
    "transport_test",
)
COPIED = ("CMakeLists.txt", "cmake", "csrc", "tests/cpp", "tests/played_cuda")
# Files of elastic jobs, whose faults are looked for by the simulator's elastic jobs.
ELASTIC = re.compile(r"csrc/(elastic/|cluster/coordinator|protocol/(ledger|coordinator|elastic|byte_ranges))")
CONTEXT = "-C1"  # lines around a change that have to match
BUILD_LIMIT_S = 3600
# Of transports, faults are planted in transport/resume only; tests of others map more than is allowed.
FILTERS = {"transport_test": "*Resum*:ShortLimitTest.*"}
LIMITED = ("prlimit", f"--as={8 << 30}")  # a fault must not use up the memory of this machine
MAX_OUTPUT_CHARACTERS = 16 << 20  # of a program; the rest is ignored


class CannotTestError(Exception):
    """A patch or the tree cannot be tested."""


@dataclass
class Row:
    """What found a fault; an empty string if nothing did, None if that was not run."""

    patch: str
    fault: str
    by_seeds: str | None = None
    by_tests: str | None = None
    is_elastic: bool = False

    @property
    def is_found(self) -> bool:
        return bool(self.by_seeds or self.by_tests)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fault_of(patch: Path) -> str:
    """The first line of a patch, without "Fault:" and the full stop."""
    line = patch.read_text().splitlines()[0]
    if not re.fullmatch(r"Fault: \S.*\.", line):
        raise CannotTestError(f"{patch.name}: its first line does not say the fault as 'Fault: ... .'")
    return line.removeprefix("Fault: ").removesuffix(".")


def names_of(patch: Path) -> set[str]:
    number, name = patch.stem.split("-", 1)
    return {number, name, patch.stem}


def select(names: list[str]) -> list[Path]:
    """The patches with these names, numbers or files; all if there are none."""
    patches = sorted(PATCHES.glob("*.patch"))
    wanted = {Path(name).name.removesuffix(".patch") for name in names}
    if unknown := wanted.difference(*map(names_of, patches)):
        raise CannotTestError(f"no such patch: {', '.join(sorted(unknown))}")
    return [patch for patch in patches if not wanted or names_of(patch) & wanted]


class Tree:
    """A copy of the sources with its own build, in a folder that later runs use again."""

    def __init__(self, folder: Path, jobs: int, programs: Sequence[str]) -> None:
        self.programs = programs
        self.sources = folder / "tree"
        self.build_folder = self.sources / "build" / "release"  # relative paths as in the tree, for ccache
        self.jobs = jobs
        self.log = folder / "log"
        # Git must not take the copy for a folder of the repository, whose paths begin elsewhere.
        self.environment = {
            **os.environ,
            "GIT_CEILING_DIRECTORIES": str(folder.resolve()),
            "CCACHE_BASEDIR": str(self.sources.resolve()),
        }

    def renew(self) -> None:
        """Copies what has changed. Other files stay as they are, so that they are not compiled again."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *COPIED],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        names = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
        for name in names:
            target = self.sources / name
            if not target.exists() or target.read_bytes() != (ROOT / name).read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, target)
        for path in [path for part in COPIED for path in (self.sources / part).rglob("*")]:
            if path.is_file() and path.relative_to(self.sources).as_posix() not in names:
                path.unlink()

    def _succeeds(self, *command: str | Path) -> bool:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            done = subprocess.run(
                command,
                cwd=self.sources,
                env=self.environment,
                stdout=log,
                stderr=log,
                check=False,
                timeout=BUILD_LIMIT_S,
            )
        return done.returncode == 0

    def _log_end(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def configure(self) -> None:
        settings = ["-DCMAKE_BUILD_TYPE=Release", "-DBYTEPS_BUILD_TESTS=ON", "-DCMAKE_UNITY_BUILD=OFF"]
        if shutil.which("ccache"):
            settings.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        if not self._succeeds("cmake", "-G", "Ninja", "-S", self.sources, "-B", self.build_folder, *settings):
            raise CannotTestError(f"cmake fails:\n{self._log_end()}")

    def build(self, what: str) -> None:
        command = ("cmake", "--build", self.build_folder, "-j", str(self.jobs), "--target", *self.programs)
        if not self._succeeds(*command):
            raise CannotTestError(f"{what} does not build:\n{self._log_end()}")

    @contextlib.contextmanager
    def patched(self, patch: Path) -> Iterator[None]:
        """Applies the patch, and takes it back at the end."""
        names = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE)
        originals = {name: (self.sources / name).read_bytes() for name in names if (self.sources / name).exists()}
        if not self._succeeds("git", "apply", CONTEXT, "--verbose", patch):
            raise CannotTestError(f"{patch.name} does not apply:\n{self._log_end()}")
        try:
            yield
        finally:
            for name, content in originals.items():
                (self.sources / name).write_bytes(content)

    def program(self, name: str) -> Path:
        return self.build_folder / name


@dataclass
class Ended:
    """What a program has written, and its exit code; None if it was stopped."""

    code: int | None
    output: str

    @property
    def verdict(self) -> str:
        return "hangs" if self.code is None else f"exit code {self.code}"


def beginning_of(log: Path) -> str:
    with log.open(errors="replace") as text:
        return text.read(MAX_OUTPUT_CHARACTERS)


def run(command: list[str | Path], log: Path, limit_s: float, until: str = "") -> Ended:
    """Runs the program in a process group of its own, and stops it when it has written `until`."""
    with log.open("w") as output:
        process = subprocess.Popen([*LIMITED, *command], stdout=output, stderr=output, start_new_session=True)
    deadline_s = time.monotonic() + limit_s
    code: int | None = None
    try:
        while code is None and time.monotonic() < deadline_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(0.2)
            if until and until in beginning_of(log):
                break
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Ended(code, beginning_of(log))


def found_by_seeds(tree: Tree, options: argparse.Namespace, *, is_elastic: bool = False) -> str:
    """The first seed that fails, or another sign of the fault; empty if there is none."""
    command: list[str | Path] = [tree.program(SIMULATOR), "--seeds", str(options.seeds), "--jobs", str(options.jobs)]
    command += ["--elastic"] if is_elastic else []
    ended = run(command, tree.log, options.seeds_limit, until="replay: ")
    if failed := re.search(r"^replay: .*--seed (\d+)", ended.output, re.MULTILINE):
        return f"{'elastic ' if is_elastic else ''}seed {failed[1]}"
    return "" if ended.code == 0 else ended.verdict


def failed_test(program: str, ended: Ended) -> str:
    """The first test that has failed, or that ran when the program ended."""
    failed = re.search(r"^\[  FAILED  \] (\S+?)[,.]?(?: |$)", ended.output, re.MULTILINE)
    if failed:
        return f"{program}: {failed[1]}"
    started = re.findall(r"^\[ RUN      \] (\S+)", ended.output, re.MULTILINE)
    return f"{program}: {started[-1] if started else 'no test'} ({ended.verdict})"


def found_by_tests(tree: Tree, options: argparse.Namespace) -> str:
    """The first test that fails; empty if there is none."""
    for program in TEST_PROGRAMS:
        found = ""
        for _ in range(2):  # a test that fails only once has failed by chance
            tests = f"--gtest_filter={FILTERS.get(program, '*')}"
            ended = run([tree.program(program), tests, "--gtest_fail_fast"], tree.log, options.test_limit)
            if ended.code == 0:
                break
            found = found or failed_test(program, ended)
        else:
            return found
        if found:
            say(f"{found} failed only once")
    return ""


def try_out(tree: Tree, options: argparse.Namespace, row: Row) -> Row:
    if not options.skip_seeds:
        row.by_seeds = found_by_seeds(tree, options, is_elastic=row.is_elastic)
    if not options.skip_tests:
        row.by_tests = found_by_tests(tree, options)
    return row


def cell(found: str | None) -> str:
    return "not run" if found is None else found or "no"


def table(rows: list[Row]) -> str:
    lines = ["| patch | fault | found by seeds | found by C++ tests |", "|---|---|---|---|"]
    lines += [f"| {row.patch} | {row.fault} | {cell(row.by_seeds)} | {cell(row.by_tests)} |" for row in rows]
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    by_seeds = sum(bool(row.by_seeds) for row in rows)
    by_tests = sum(bool(row.by_tests) for row in rows)
    found = sum(row.is_found for row in rows)
    return f"{len(rows)} faults: {by_seeds} found by seeds, {by_tests} by C++ tests, {found} by one of both"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Plants faults and says which tests find them.")
    parser.add_argument("patches", nargs="*", metavar="PATCH", help="names or numbers of patches; default: all")
    parser.add_argument("--seeds", type=int, default=10_000, help="seeds of the simulator for each fault")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of builds and of seeds")
    parser.add_argument("--skip-seeds", action="store_true", help="without the simulator")
    parser.add_argument("--skip-tests", action="store_true", help="without the C++ tests")
    parser.add_argument("--skip-intact", action="store_true", help="do not first test the tree without a fault")
    parser.add_argument("--seeds-limit", type=float, default=1800, metavar="S", help="seconds for all seeds")
    parser.add_argument("--test-limit", type=float, default=300, metavar="S", help="seconds for a test program")
    parser.add_argument(
        "--from-build",
        type=Path,
        default=ROOT / "build" / "mutations",
        metavar="DIR",
        help="folder of the copy and its build; a later run only builds what has changed",
    )
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    errors: list[str] = []
    try:
        patches = select(options.patches)
        programs = (() if options.skip_seeds else (SIMULATOR,)) + (() if options.skip_tests else TEST_PROGRAMS)
        tree = Tree(options.from_build.resolve(), options.jobs, programs)
        tree.renew()
        tree.configure()
        tree.build("the tree")
        if not options.skip_intact:
            intact = try_out(tree, options, Row("none", "none"))
            if not intact.is_found and not options.skip_seeds:
                intact.by_seeds = found_by_seeds(tree, options, is_elastic=True)
            if intact.is_found:
                raise CannotTestError(f"the tree fails without a fault: {intact.by_seeds or intact.by_tests}")
            say("the tree without a fault passes")
    except CannotTestError as error:
        say(str(error))
        return 2
    for patch in patches:
        try:
            row = Row(patch.stem, fault_of(patch), is_elastic=ELASTIC.search(patch.read_text()) is not None)
            with tree.patched(patch):
                tree.build(patch.name)
                rows.append(try_out(tree, options, row))
            say(f"{row.patch}: seeds: {cell(row.by_seeds)}, C++ tests: {cell(row.by_tests)}")
        except CannotTestError as error:
            say(str(error))
            errors.append(patch.name)
    print(table(rows))
    print(f"\n{summary(rows)}")
    if errors:
        say(f"not tested: {', '.join(errors)}")
        return 2
    return 0 if all(row.is_found for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
