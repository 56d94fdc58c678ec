"""Futures that hold a C++ list of tensors.

Futures that Python makes hold a Python object, and PyTorch has no function to give them another
type. Futures that TorchScript makes have the type of the function whose result they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.futures import Future

__all__ = ["tensor_list"]

_SOURCE = """
def outputs_after(done: Future[Any], outputs: List[Tensor]) -> List[Tensor]:
    torch.jit.wait(done)
    return outputs

def start(done: Future[Any], outputs: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(outputs_after, done, outputs)
"""


def tensor_list(done: Future[Any], outputs: list[torch.Tensor]) -> Future[Any]:
    """Returns a future of `outputs` that completes, or fails, with `done`. Blocks no thread."""
    future: Future[Any] = _compiled().start(done, outputs)
    return future


@cache
def _compiled() -> Any:
    return torch.jit.CompilationUnit(_SOURCE)
