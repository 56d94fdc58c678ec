"""A torch Store for the ranks of byteps's job, if the launcher describes the job to byteps only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

from byteps import runtime
from byteps.config import process_environment
from byteps.config_reader import LOOPBACK
from byteps.objects import broadcast_object
from byteps.runtime import Job

__all__ = ["claim", "store_of_job"]

_joined: list[Job] = []  # at most one: joined by `store_of_job` for the next process group


def store_of_job(timeout: timedelta | None) -> tuple[Any, int, int]:
    """Joins the environment's job. Returns a store of rank 0, the rank and the size."""
    options: dict[str, Any] = {"wait_for_workers": False} | ({} if timeout is None else {"timeout": timeout})
    if not runtime.is_initialized():
        environ = dict(process_environment())
        if timeout is not None:
            environ.setdefault("BYTEPS_OP_TIMEOUT_S", str(timeout.total_seconds()))
        _joined[:] = [runtime.join_as_process(environ)]
    job = runtime.current_job()
    host = job.config.scheduler_host or LOOPBACK  # rank 0's machine, which all ranks know
    store = None
    if job.rank == 0:
        store = TCPStore(host, 0, is_master=True, **options)
    port = broadcast_object(store.port if store is not None else 0, name="c10d.store")
    if store is None:
        store = TCPStore(host, port, is_master=False, **options)
    return store, job.rank, job.size


def claim(job: Job) -> bool:
    """Whether the job was joined for the group that calls this, which must leave it then."""
    claimed = job in _joined
    _joined.clear()
    return claimed
