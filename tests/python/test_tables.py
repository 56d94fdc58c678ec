"""What Python and the documents repeat of the core's tables."""

from __future__ import annotations

import socket

from byteps import _core
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
