"""Gradients of Keras's torch backend. The only file of byteps.keras that imports byteps.torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch

from byteps.keras.backend import OptimizerOptions
from byteps.keras.compression import Compression
from byteps.ops import Handle, ReduceOp, one_call
from byteps.torch.compression import AnyCompressor
from byteps.torch.compression import Compression as Compressors
from byteps.torch.eager import eager
from byteps.torch.ops import push_pull
from byteps.torch.start import start_push_pull, synchronize_all

__all__ = ["all_true", "check_usable", "exchange", "is_eager", "is_sparse", "no_gradient", "outside_graphs"]


def check_usable() -> None:
    """Does nothing: torch.compile breaks its graph at `exchange`."""


def is_eager() -> bool:
    return True


def outside_graphs() -> AbstractContextManager[Any]:
    return nullcontext()


def is_sparse(gradient: Any) -> bool:
    return False  # `exchange` makes sparse gradients dense, as Keras's optimizers do


def no_gradient(variable: Any, sparse: bool) -> Any:
    return torch.zeros_like(variable.value)


@eager
def exchange(gradients: Sequence[torch.Tensor], names: Sequence[str], options: OptimizerOptions) -> list[torch.Tensor]:
    compressor = _compressor(options.compression)
    handles: list[Handle] = []
    contexts: list[Any] = []
    errors: list[Exception] = []
    for index, (gradient, name) in enumerate(zip(gradients, names, strict=True)):
        try:  # every gradient counts as a call, also after an error, as on ranks without one
            with one_call(name):
                small, ctx = compressor.compress(_dense(gradient))
                handles.append(start_push_pull(small, options.op, name, -index, in_place=False))
                contexts.append(ctx)
        except Exception as error:
            errors.append(error)
    try:
        reduced = synchronize_all(handles)
    except Exception as error:
        errors.append(error)
    if errors:
        raise errors[0]
    return [compressor.decompress(small, ctx) for small, ctx in zip(reduced, contexts, strict=True)]


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()


@eager
def all_true(flag: torch.Tensor, name: str) -> torch.Tensor:
    return push_pull(flag.to(torch.uint8), name=name, op=ReduceOp.Min).to(torch.bool)


def _compressor(compression: Any) -> AnyCompressor:
    named = isinstance(compression, Compression)
    return cast("AnyCompressor", getattr(Compressors, compression.name) if named else compression)
