"""The wheel is built from tracked files alone, complete, and needs no framework to import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "."],
        cwd=source,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # cmake and ninja
            "CMAKE_ARGS": "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (source / "dist").glob("byteps-*.whl")
    return path


@pytest.mark.timeout(900)  # the first test may compile the whole core
def test_wheel_has_everything_that_is_imported(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "byteps", "launcher"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    expected = {f"byteps/{name}" if name.startswith("launcher/") else name for name in tracked}
    assert expected <= names
    assert any(name.startswith("byteps/_core.") and name.endswith(".so") for name in names)
    assert {"byteps/tensorflow/_ops.so", "byteps/mxnet/_engine.so"} <= names


@pytest.mark.timeout(900)
def test_wheel_works_without_a_framework(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import sys, byteps, byteps._core, byteps.cli, byteps.launcher.launch;"
        "print(byteps.__file__, byteps._core.__file__, byteps.launcher.__file__, sep='\\n');"
        "assert not {'torch', 'tensorflow', 'mxnet'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],  # without the editable clone of this environment
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(Path(line).is_relative_to(tmp_path) for line in done.stdout.splitlines()), done.stdout


@pytest.mark.timeout(900)
def test_wheel_makes_its_backend_known_to_pytorch(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import sys, torch; assert torch.distributed.is_backend_available('byteps');"
        "assert 'byteps.torch' not in sys.modules and 'byteps._core' not in sys.modules;"
        "print(sys.modules['byteps.torch_plugin'].__file__)"
    )
    # PyTorch's folder, without what is installed beside it as files of this clone.
    import torch

    (tmp_path / "sites").mkdir()
    for path in Path(torch.__file__).parents[1].iterdir():
        if "byteps" not in path.name and path.suffix != ".pth":
            (tmp_path / "sites" / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{tmp_path / 'sites'}", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path), done.stdout


def test_a_script_above_an_editable_clone_finds_the_package(tmp_path: Path) -> None:
    clone, bin_folder = tmp_path / "byteps", tmp_path / "bin"
    for name in ("byteps", "launcher"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, clone)
    bin_folder.mkdir()
    (bin_folder / "cmake").write_text("#!/bin/sh\n")  # the native code does not matter here
    (bin_folder / "cmake").chmod(0o755)
    built = subprocess.run(
        [sys.executable, "setup.py", "editable_wheel", "--dist-dir", tmp_path],
        cwd=clone,
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("byteps-*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    program = f"import site; site.addsitedir({str(tmp_path / 'site')!r}); import byteps; print(byteps.__file__)"
    said = subprocess.run(
        [sys.executable, "-S", "-c", program],  # without the editable clone of this environment
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"{clone}/byteps/__init__.py\n"
