"""Registers the backend `byteps` when torch is imported (entry point of group torch.backends).

Frameworks make process groups before a script's own imports (Ray Train), or ask PyTorch for its
backends (Hugging Face). So this module is cheap, and imports parts of byteps that may be missing
only when the backend is used.
"""

from __future__ import annotations

import logging

__all__ = ["load", "register"]

NAME = "byteps"


def load() -> None:
    """Called by `import torch`. Logs errors, so that the import does not fail because of byteps."""
    try:
        register()
    except Exception:
        logging.getLogger("byteps").warning("cannot register the backend 'byteps' of torch.distributed", exc_info=True)


def register() -> None:
    """Registers the backend, once. Does nothing if PyTorch was built without torch.distributed."""
    import torch

    if not torch.distributed.is_available():
        return
    from torch.distributed import Backend, ProcessGroup

    from byteps.torch_plugin import hugging_face, rendezvous

    def create(backend_options: object, pg_options: object) -> ProcessGroup:
        from byteps.torch.c10d.group import create_group

        # PyTorch makes its own tensors on a backend's last device.
        if not torch.accelerator.is_available():
            Backend.backend_capability[NAME] = ["cpu"]
        return create_group(backend_options, pg_options)

    if NAME.upper() not in Backend._plugins:
        devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
        Backend.register_backend(NAME, create, extended_api=True, devices=devices)
        rendezvous.patch_rendezvous()
        hugging_face.patch_accelerate()
