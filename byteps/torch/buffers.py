"""Broadcasts of a module's buffers, such as the statistics of BatchNorm."""

from __future__ import annotations

import torch
from torch import nn

from byteps.runtime import rank, size
from byteps.torch.ops import broadcast_

__all__ = ["broadcast_buffers"]

Tensor = torch.Tensor


@torch.no_grad()
def broadcast_buffers(module: nn.Module, prefix: str) -> None:
    """Replaces all buffers by those of rank 0, in one message. Blocks.

    Args:
        module: has the same buffers on all ranks.
        prefix: of the broadcast's name.
    """
    # Wide types come first, so that every buffer is aligned.
    buffers = sorted((buffer for buffer in module.buffers() if buffer.numel()), key=lambda b: -b.element_size())
    if not buffers or size() == 1:
        return
    nbytes = sum(buffer.nbytes for buffer in buffers)
    if rank() == 0:
        message = torch.cat([buffer.detach().cpu().reshape(-1).view(torch.uint8) for buffer in buffers])
    else:
        message = torch.empty(nbytes, dtype=torch.uint8)
    broadcast_(message, 0, f"{prefix}buffers.{nbytes}")
    if rank() == 0:
        return
    for buffer, part in zip(buffers, message.split([buffer.nbytes for buffer in buffers]), strict=True):
        buffer.copy_(part.view(buffer.dtype).view(buffer.shape))
