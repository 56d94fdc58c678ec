"""Jobs by RDMA in the virtual machine when something breaks."""

from __future__ import annotations

import pytest
from rdma import image
from rdma.machine import TEST_LIMIT_S
from rdma.vm_cases import VmCases

IMPOSSIBLE = image.why_impossible()
pytestmark = [
    pytest.mark.skipif(IMPOSSIBLE is not None, reason=f"no virtual machine here: {IMPOSSIBLE}"),
    pytest.mark.timeout(TEST_LIMIT_S),
]

CASES = VmCases("rdma.fault_cases", limit_s=600.0)


@CASES.each
def test_case(case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    CASES.check(case, tmp_path_factory)
