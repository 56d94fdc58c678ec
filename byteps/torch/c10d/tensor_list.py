"""Futures that hold a list of tensors as C++ has it.

Futures that Python makes hold a Python object, whatever it is, and PyTorch has no function to give them another type.
But those that TorchScript makes have the type of the function that they are the result of.
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
    """A future of `outputs`, complete when `done` is, and with its error. Blocks no thread."""
    future: Future[Any] = _compiled().start(done, outputs)
    return future


@cache
def _compiled() -> Any:
    return torch.jit.CompilationUnit(_SOURCE)
