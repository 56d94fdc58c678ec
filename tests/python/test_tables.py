"""What Python and the documents repeat of the core's tables."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np

from byteps import _core, errors, ops
from byteps.config import Config
from byteps.nodes import LocalNode


def test_every_node_has_all_metrics() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    node = _core.Node(
        _core.NodeConfig(
            rank=0, host_scheduler=True, scheduler_fd=listener.detach(), secret=b"a secret", job_id="tables"
        )
    )
    metrics = node.metrics()
    node.shutdown()
    assert list(metrics) == list(LocalNode().metrics()) == list(_core.METRICS)
    assert metrics["partition_factor"] == 1
    assert metrics["credit_bytes"] == _core.NodeConfig().credit_bytes


def test_the_document_has_all_codes() -> None:
    """docs/wire-format.md has one table of them, with two columns for each kind of code."""
    document = (Path(__file__).resolve().parents[2] / "docs/wire-format.md").read_text()
    table = document.split("### Codes\n")[1].split("\n### ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    dtypes = {row[1]: int(row[0]) for row in rows if row[0].isdigit()}
    operations = {row[3]: int(row[2]) for row in rows if row[2].isdigit()}
    statuses = {row[5]: int(row[4]) for row in rows if row[4].isdigit()}
    assert (dtypes, operations) == (_core.DTYPE_CODES, _core.OP_CODES)
    assert statuses == {"ok": 0} | {name: code for name, (code, _) in _core.ERRORS.items()}


def test_sizes_of_dtypes() -> None:
    assert list(_core.DTYPE_BYTES) == list(_core.DTYPE_CODES)
    for name, nbytes in _core.DTYPE_BYTES.items():
        assert nbytes == (2 if name == "bfloat16" else np.dtype(name).itemsize)


def test_operations_have_a_name_in_python() -> None:
    others = {"broadcast": ops.BROADCAST, "seed": ops.SEED, "accumulate": ops.ACCUMULATE}
    assert {op.name.lower(): op.value for op in ops.ReduceOp} | others == _core.OP_CODES


def test_errors_have_an_exception() -> None:
    exceptions = [name for _, name in _core.ERRORS.values()]
    assert {*exceptions, "BytePSError", "ArgumentTypeError", "NotFiniteError"} == set(errors.__all__)
    assert len(exceptions) == len(set(exceptions))


def test_all_fields_of_a_nodes_configuration_are_set() -> None:
    of_no_user = {"is_generation", "loopback_only", "measure_nics", "shared_staging", "traffic_report_s"}
    assert {*Config().node_fields()} | of_no_user == {*_core.NodeConfig.FIELDS}
