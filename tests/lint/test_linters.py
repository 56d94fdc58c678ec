"""Each linter and formatter is one test, so that `make test-all` counts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command[:3]))} ...:\n{done.stdout}{done.stderr}", pytrace=False)


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def test_clang_format() -> None:
    run(BIN / "clang-format", "--dry-run", "-Werror", *tracked("*.cc", "*.h"))


def test_ruff_check() -> None:
    run(BIN / "ruff", "check", "--quiet", *tracked("*.py", "*.pyi"))


def test_ruff_format() -> None:
    run(BIN / "ruff", "format", "--check", "--quiet", *tracked("*.py", "*.pyi"))


def test_mypy_strict(tmp_path: Path) -> None:
    """Over the tree as it is installed: launcher/ is the package byteps.launcher there."""
    package = tmp_path / "byteps"
    package.mkdir()
    for entry in (ROOT / "byteps").iterdir():
        if entry.suffix != ".so" and entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    (package / "launcher").symlink_to(ROOT / "launcher")
    run(
        BIN / "mypy",
        "--config-file",
        ROOT / "pyproject.toml",
        "--cache-dir",
        ROOT / ".mypy_cache",
        "byteps",
        cwd=tmp_path,
    )


def test_shell_scripts_parse() -> None:
    for name in [".ci/run", *tracked("*.sh")]:
        run("bash", "-n", name)
