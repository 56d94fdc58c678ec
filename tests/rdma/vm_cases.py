"""Cases that run in the guest (case_program.py), as tests of a module in pytest.

OUTCOMES = VmCases("rdma.fault_cases")

@OUTCOMES.each
def test_case(case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    OUTCOMES.check(case, tmp_path_factory)
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.cases import names_of

from .batch import run_all_in_vm
from .image import ROOT

PROGRAM = Path(__file__).with_name("case_program.py")


class VmCases:
    """Runs all cases in one boot, when the first is needed."""

    def __init__(self, *modules: str, limit_s: float = 300.0, memory_mib: int = 1024) -> None:
        """Does not start the machine yet.

        Args:
            modules: dotted names. A case's name belongs to one of them.
            limit_s: for all cases of a module.
            memory_mib: of the guest.
        """
        self._modules = modules
        self._limit_s = limit_s
        self._memory_mib = memory_mib
        self._results: dict[str, str] | None = None  # results by case; see case_program.py
        self._said = ""

    def each(self, test: object) -> object:
        """Decorator for a test with a parameter `case`."""
        return pytest.mark.parametrize("case", [case for module in self._modules for case in names_of(module)])(test)

    def check(self, case: str, folders: pytest.TempPathFactory) -> None:
        """Fails the test unless the case passed."""
        if self._results is None:
            self._results = {}
            self._run(folders.mktemp("cases"))
        result = self._results.get(case, f"the machine did not get so far. It said:\n{self._said}")
        if result:
            raise AssertionError(result)

    def _run(self, folder: Path) -> None:
        assert self._results is not None
        python_path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
        ended = run_all_in_vm(
            {module: [sys.executable, PROGRAM, module, folder] for module in self._modules},
            self._limit_s,
            shares=[folder],
            memory_mib=self._memory_mib,
            env={"PYTHONPATH": python_path},
        )
        for module in self._modules:
            file = folder / f"{module}.json"
            self._results |= json.loads(file.read_text()) if file.exists() else {}
            self._said += f"{module}: {ended[module].describe()}\n"
