"""Rules for the text of the tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).relative_to(ROOT).as_posix()


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def matches(pattern: str, names: list[str]) -> list[str]:
    """file:line of every line that matches, in those of the files that are text."""
    found = []
    for name in names:
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        lines = text.splitlines()
        found += [
            f"{name}:{number + 1}: {line.strip()}" for number, line in enumerate(lines) if re.search(pattern, line)
        ]
    return found


def test_no_path_of_one_machine() -> None:
    wrong = matches(r"(?<![\w.}])/(root|home|work|Users)/", [name for name in tracked_files() if name != HERE])
    assert not wrong, "\n".join(wrong)


def test_one_file_uses_torch_cuda() -> None:
    files = [name for name in tracked_files() if name.startswith("byteps/") and name.endswith(".py")]
    wrong = [line for line in matches(r"\btorch\.cuda\b", files) if not line.startswith("byteps/torch/device.py:")]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r"\bgetenv\b", "Python hands the core a filled Config"),
        (r"\bvolatile\b", "std::atomic, or a lock"),
        (r"\.detach\(\)", "every thread has an owner that joins it"),
        (r"\b(sleep_for|sleep_until|usleep|nanosleep)\b", "wait for an event"),
        (r"\busing namespace\b", "name what is used"),
        (r"\b(TODO|FIXME|XXX)\b", "do it, or open an issue"),
    ],
)
def test_csrc_does_without(pattern: str, instead: str) -> None:
    wrong = matches(pattern, [name for name in tracked_files() if name.startswith("csrc/")])
    assert not wrong, f"instead: {instead}\n" + "\n".join(wrong)


def test_environment_page_is_up_to_date() -> None:
    command = [Path(sys.executable).with_name("byteps"), "env", "--markdown"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (ROOT / "docs" / "env.md").read_text() == done.stdout, "run: byteps env --markdown > docs/env.md"
