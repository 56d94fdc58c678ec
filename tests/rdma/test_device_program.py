"""Runs the C++ tests that need RDMA devices: libibverbs and the conformance suite over it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rdma import image
from rdma.machine import TEST_LIMIT_S, run_in_vm

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "release" / "rdma_device_test"
IMPOSSIBLE = image.why_impossible()
pytestmark = [
    pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"no virtual machine here: {IMPOSSIBLE}"),
    pytest.mark.timeout(TEST_LIMIT_S),
]

PROGRAM_LIMIT_S = 1200.0


def test_all_pass_and_none_is_left_out(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    done = run_in_vm([PROGRAM, f"--gtest_output=xml:{results}"], PROGRAM_LIMIT_S, shares=[tmp_path], folder=ROOT)
    assert done.status == 0, done.describe()
    cases = list(ET.parse(results).getroot().iter("testcase"))
    left_out = {f"{case.get('classname')}.{case.get('name')}" for case in cases if case.get("result") != "completed"}
    assert len(cases) > 60
    assert not left_out
