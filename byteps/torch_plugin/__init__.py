"""What makes the backend `byteps` known to PyTorch, with `import torch` already (entry point of group torch.backends).

Frameworks make process groups before a script's own imports (Ray Train), or ask PyTorch which backends there are
(Hugging Face). So this is cheap, and imports nothing of byteps that may be missing or fail before the backend is used.
"""

from __future__ import annotations

import logging

__all__ = ["load", "register"]

NAME = "byteps"


def load() -> None:
    """Called by `import torch`, which is not to fail because of this."""
    try:
        register()
    except Exception:
        logging.getLogger("byteps").warning("the backend 'byteps' of torch.distributed is not there", exc_info=True)


def register() -> None:
    """Makes the backend known, once. Does nothing where PyTorch was built without torch.distributed."""
    import torch

    if not torch.distributed.is_available():
        return
    from torch.distributed import Backend, ProcessGroup

    from byteps.torch_plugin import hugging_face, rendezvous

    def create(place: object, options: object) -> ProcessGroup:
        from byteps.torch.c10d.group import create_group

        if not torch.cuda.is_available():  # PyTorch makes tensors of its own on the last device of a backend
            Backend.backend_capability[NAME] = ["cpu"]
        return create_group(place, options)

    if NAME.upper() not in Backend._plugins:
        devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
        Backend.register_backend(NAME, create, extended_api=True, devices=devices)
        rendezvous.patch_rendezvous()
        hugging_face.patch_accelerate()
