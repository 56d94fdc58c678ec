"""The backend `byteps` of torch.distributed: `import byteps.torch`, then `init_process_group("byteps")`.

docs/torch-distributed.md is for users.
"""

from __future__ import annotations

import torch

__all__ = ["register"]

NAME = "byteps"


def register() -> None:
    """Makes the backend known to torch.distributed, once. Does nothing where torch was built without that."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import Backend, ProcessGroup

    def create(place: object, options: object) -> ProcessGroup:
        from byteps.torch.c10d.group import create_group  # torch's gloo is not loaded before it is needed

        return create_group(place, options)

    if NAME.upper() not in Backend._plugins:
        Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
