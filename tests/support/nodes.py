"""Jobs of one process: a node for each rank and server."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from byteps import _core

DEADLINE_S = 60.0


@contextmanager
def job(machines: Sequence[int], servers: int = 0, placement: str = "auto") -> Iterator[list[_core.Node]]:
    """The workers of a job, by rank; `machines`: where each of them is."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    everybody = len(machines) + servers

    def join(i: int) -> _core.Node:
        is_worker = i < len(machines)
        return _core.Node(
            _core.NodeConfig(
                role="worker" if is_worker else "server",
                rank=i if is_worker else -1,
                num_workers=len(machines),
                num_servers=servers,
                machine=f"machine{machines[i]}" if is_worker else f"server{i}",
                scheduler_host="127.0.0.1",
                scheduler_ports=[port],
                host_scheduler=i == 0,
                scheduler_by_rank_0=True,
                scheduler_fd=listener.detach() if i == 0 else -1,
                secret=b"a secret",
                job_id=f"test-{port}",
                start_timeout_s=DEADLINE_S,
                timeout_s=DEADLINE_S,
                op_timeout_s=DEADLINE_S,
                partition_bytes=4096,
                service_threads=2,
                placement=placement,
                log_level="error",
            )
        )

    with ThreadPoolExecutor(everybody) as threads:
        nodes = list(threads.map(join, range(everybody)))
        try:
            yield nodes[: len(machines)]
        finally:
            list(threads.map(lambda node: node.shutdown(), nodes))
