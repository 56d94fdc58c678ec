"""Runs measures, by default all, and writes the report: python -m benchmarks.run [MEASURE...].

Each measure is a process of its own with a hard deadline, so none can take the others with it.
Results go to benchmarks/results/: NAME.json and report.html. BENCH_TURNS=1 makes a quick, rough
run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import time

from benchmarks.harness.results import RESULTS, ROOT, Recorder
from benchmarks.measures import MEASURES
from benchmarks.report.page import write_page
from benchmarks.report.table import show

_GRACE_S = 15.0  # between asking and killing


def run_one(name: str) -> None:
    """Runs a measure in this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves contexts
    module = importlib.import_module(f"benchmarks.measures.{name}")
    print(f"\n=== {module.TITLE}", flush=True)
    module.run(Recorder(name, module.TITLE, show))


def run_in_child(name: str) -> bool:
    """Runs a measure in a child process. Returns False if it fails or is late."""
    deadline_s = importlib.import_module(f"benchmarks.measures.{name}").DEADLINE_S
    (RESULTS / f"{name}.json").unlink(missing_ok=True)
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.run", "--here", name], cwd=ROOT, env=os.environ)
    try:
        child.wait(deadline_s)
    except subprocess.TimeoutExpired:
        print(f"{name}: not done after {deadline_s} s", flush=True)
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()  # the lab's keeper ends the rest
                child.wait()
    print(f"({name}: {time.monotonic() - began:.0f} s)", flush=True)
    return child.returncode == 0


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=", ".join(MEASURES))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.measures) - set(MEASURES):
        parser.error(f"no such measure: {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    if options.here:
        run_one(*options.measures)
        return 0
    RESULTS.mkdir(exist_ok=True)
    failed = [name for name in options.measures or MEASURES if not run_in_child(name)]
    write_page(RESULTS, RESULTS / "report.html")
    print(f"\nreport: {RESULTS / 'report.html'}" + (f"\nfailed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
