"""Reports of a process about its end, to bpslaunch by a file and to other ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from byteps.ending import describe, report
from byteps.errors import PeerLostError

PRELUDE = """
import os, sys, numpy as np, byteps
byteps.init()
def communicate(): byteps.push_pull(np.ones(1), name="x")
"""
CAUGHT = """
try: sys.exit(3)
except SystemExit: pass
"""
HANDLED = """
try: 1 / 0
except ZeroDivisionError: sys.exit(2)
"""
FORKS = """
pid = os.fork()
if pid == 0: sys.exit(1)
os.waitpid(pid, 0)
"""
THREAD = """
import threading
thread = threading.Thread(target=sys.exit, args=(3,))
thread.start()
thread.join()
"""
FAILING_THREAD = THREAD.replace("sys.exit, args=(3,)", "{}.pop, args=(3,)")
MAIN_ENDS_BY_ITSELF = "import threading; threading.excepthook = lambda args: sys.excepthook(*args[:3])" + FAILING_THREAD
LOST = """
from byteps.errors import PeerLostError
try: raise PeerLostError("rank 1 is gone")
except PeerLostError as error: raise RuntimeError("no step") from error
"""


@pytest.mark.parametrize(
    ("end", "cause", "because_of"),
    [
        ("{}['label']", "KeyError: 'label'", ""),
        ("sys.exit(3)", "sys.exit(3)", ""),
        ("sys.exit('no data')", "sys.exit('no data')", ""),
        ("try: {}['label']\nfinally: byteps.shutdown()", "KeyError: 'label'", ""),
        (HANDLED, "ZeroDivisionError: division by zero, then sys.exit(2)", ""),
        ("sys.excepthook = lambda *_: None; 1 / 0", "ZeroDivisionError: division by zero", ""),
        ("byteps.shutdown(); {}['label']", "KeyError: 'label'", ""),
        (LOST, "RuntimeError: no step", "rank 1 is gone"),
        ("sys.exit(0)", "", ""),
        ("raise SystemExit", "", ""),
        ("raise SystemExit(3)", "", ""),
        (FAILING_THREAD, "", ""),
        (MAIN_ENDS_BY_ITSELF, "", ""),
        (CAUGHT + "communicate()", "", ""),
        (FORKS, "", ""),
        (THREAD, "", ""),
    ],
)
def test_a_process_reports_what_ends_it(end: str, cause: str, because_of: str, tmp_path: Path) -> None:
    file = tmp_path / "report"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))}
    subprocess.run(
        [sys.executable, "-c", f"{PRELUDE}\n{end}"],
        env={**inherited, "BYTEPS_ERROR_FILE": str(file)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    said = json.loads(file.read_text()) if file.exists() else {"cause": "", "because_of": ""}
    assert (said["cause"], said["because_of"]) == (cause, because_of)


def test_the_first_report_counts(tmp_path: Path) -> None:
    for cause in ("first", "second"):
        report(str(tmp_path / "report"), 1.0, cause, "")
    assert json.loads((tmp_path / "report").read_text())["cause"] == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    report(str(tmp_path / "no folder" / "report"), 1.0, "of no avail", "")


def test_an_exception_is_described_in_one_line() -> None:
    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise ValueError

    assert describe(PeerLostError("rank 1\n  is gone")) == "PeerLostError: rank 1 is gone"
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert describe(Mute()) == "Mute: (no message: its __str__ fails)"
    assert len(describe(ValueError("x" * 10_000))) < 1100
