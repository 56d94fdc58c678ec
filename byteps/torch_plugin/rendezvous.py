"""Makes `init_process_group` work under launchers whose variables PyTorch does not read.

These are mpirun, mpiexec and srun, and BytePS's variables set by hand. Where PyTorch's own four
variables are set, as torchrun and bpslaunch do, PyTorch's rendezvous is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlparse

__all__ = ["patch_rendezvous"]

Handler = Callable[..., Iterator[Any]]


def patch_rendezvous() -> None:
    """Patches the scheme env:// to use byteps's job if PyTorch's variables are not set."""
    handlers = getattr(importlib.import_module("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
    if "env" in handlers:
        handlers["env"] = _after(handlers["env"])


def _after(by_torch: Handler) -> Handler:
    def rendezvous(url: str, **options: Any) -> Iterator[Any]:
        return by_torch(url, **options) if _is_for_torch(url) else _in_job(**options)

    return rendezvous


def _is_for_torch(url: str) -> bool:
    from byteps.config import process_environment
    from byteps.detect import detect

    environ, given = process_environment(), parse_qs(urlparse(url).query)
    needed = {"RANK": "rank", "WORLD_SIZE": "world_size", "MASTER_ADDR": "", "MASTER_PORT": ""}
    if all(environ.get(name) or option in given for name, option in needed.items()):
        return True
    by_hand = any(environ.get(name) for name in ("DMLC_NUM_WORKER", "DMLC_PS_ROOT_URI", "BYTEPS_LOCAL_SIZE"))
    return detect(environ, []) is None and not by_hand


def _in_job(**options: Any) -> Iterator[Any]:
    from byteps.torch.c10d.launched import store_of_job

    yield store_of_job(options.get("timeout"))
    raise RuntimeError("a process group of byteps's job is made once: call init_process_group again")
