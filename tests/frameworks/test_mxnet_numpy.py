"""MXNet with the newest and the oldest NumPy, and errors if it cannot be imported.

MXNet and its numpys are in an environment of their own (tools/bootstrap.sh); this process imports
neither.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.case_jobs import CaseJob, outcome_of
from support.cases import names_of
from support.job import ROOT

MXNET = Path(sys.prefix, "mxnet", "bin", "python")
NUMPYS = {"newest": None, "1.23": Path(sys.prefix, "mxnet", "numpy-1.23")}
CASES = "frameworks.mxnet_numpy_cases"
# Like byteps/mxnet/__init__.py.
CALL = "from byteps.mxnet.numpy_names import import_mxnet; import_mxnet()"


def python_path(first: Path | None) -> str:
    """Returns PYTHONPATH with the folder `first` before all others."""
    return os.pathsep.join(map(str, [*filter(None, [first]), ROOT, ROOT / "tests"]))


def run(python: str | Path, *command: str | Path, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": python_path(first), "OMP_NUM_THREADS": "1"}
    return subprocess.run([python, *command], env=env, capture_output=True, text=True, check=False, timeout=110)


def job_with(numpy: Path | None) -> CaseJob:
    return CaseJob(CASES, 1, python=MXNET, env=(("PYTHONPATH", python_path(numpy)),))


@pytest.mark.parametrize("case", names_of(CASES))
@pytest.mark.parametrize("numpy", NUMPYS)
def test_case(numpy: str, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for needed in filter(None, [MXNET, NUMPYS[numpy]]):
        if not needed.exists():
            pytest.skip(f"{needed} is missing: tools/bootstrap.sh test-all makes it (numpy 1.23 up to Python 3.11)")
    outcome_of(job_with(NUMPYS[numpy]), tmp_path_factory).check(case)


def test_import_after_one_that_failed() -> None:
    if not MXNET.exists():
        pytest.skip(f"{MXNET} is missing: tools/bootstrap.sh test-all makes it")
    program = f"""
        try:
            import mxnet
        except AttributeError:
            {CALL}
        import mxnet
        x = mxnet.nd.ones((2,))
        x.attach_grad()
        with mxnet.autograd.record():
            y = x * 2
        y.backward()
        assert x.grad.asnumpy().tolist() == [2, 2]
    """
    done = run(MXNET, "-c", textwrap.dedent(program))
    assert done.returncode == 0, done.stderr


def fake_mxnet(folder: Path, init: str, **modules: str) -> None:
    (folder / "mxnet").mkdir()
    for name, text in {"__init__": init, **modules}.items():
        (folder / "mxnet" / f"{name}.py").write_text(textwrap.dedent(text))


def error_of(program: str, first: Path | None = None) -> str:
    """Returns the error of a program in this environment, which has no MXNet."""
    done = run(sys.executable, "-c", textwrap.dedent(program), first=first)
    assert done.returncode == 1, done.stdout
    return done.stderr


def test_error_without_mxnet() -> None:
    error = error_of(CALL)
    assert "ModuleNotFoundError: byteps.mxnet needs MXNet 1.9.1, which is not installed." in error
    assert "pip install --no-deps mxnet==1.9.1" in error
    assert 'pip install "numpy>=1.23,<' in error


def test_error_with_another_mxnet(tmp_path: Path) -> None:
    fake_mxnet(tmp_path, "__version__ = '2.0.0'")
    error = error_of(CALL, tmp_path)
    assert "byteps.errors.UnsupportedError: byteps.mxnet works with MXNet 1.9" in error
    assert "MXNet 2.0.0 (with numpy " in error
    assert "pip install --no-deps mxnet==1.9.1" in error


def test_error_with_a_numpy_of_the_future(tmp_path: Path) -> None:
    """A future NumPy may lack further names."""
    init = """
        from mxnet import libinfo
        import numpy as np
        assert np.PINF > 0
        np.name_that_went
    """
    fake_mxnet(tmp_path, init, libinfo="__version__ = '1.9.1'")
    program = f"""
        import numpy
        before = set(vars(numpy))
        try:
            {CALL}
        finally:
            assert set(vars(numpy)) == before
    """
    error = error_of(program, tmp_path)
    assert "byteps.errors.UnsupportedError: MXNet 1.9.1 (with numpy " in error
    assert "cannot be imported: AttributeError: module 'numpy' has no attribute 'name_that_went'" in error
    assert "pip install --no-deps mxnet==1.9.1" in error


def test_error_if_mxnet_lacks_a_package(tmp_path: Path) -> None:
    fake_mxnet(tmp_path, "import graphviz_that_is_missing")
    error = error_of(CALL, tmp_path)
    assert "ModuleNotFoundError: MXNet of unknown release (with numpy " in error
    assert "No module named 'graphviz_that_is_missing'" in error
    assert "requests graphviz" in error


def test_mxnet_imported_before_is_not_touched(tmp_path: Path) -> None:
    fake_mxnet(tmp_path, "__version__ = '1.9.0'\nimport numpy as np")
    # Alone: the rest of byteps.mxnet needs more of MXNet.
    path = ROOT / "byteps" / "mxnet" / "numpy_names.py"
    program = f"""
        import mxnet, numpy, runpy
        assert runpy.run_path({str(path)!r})["import_mxnet"]() is mxnet
        assert mxnet.np is numpy and not hasattr(numpy, "PINF")
    """
    done = run(sys.executable, "-c", textwrap.dedent(program), first=tmp_path)
    assert done.returncode == 0, done.stderr
