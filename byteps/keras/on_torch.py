"""Gradients of Keras's torch backend. The only file of byteps.keras that imports byteps.torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch

from byteps.keras.backend import Options
from byteps.keras.compression import Compression
from byteps.ops import ReduceOp
from byteps.torch.compression import AnyCompressor
from byteps.torch.compression import Compression as Compressors
from byteps.torch.eager import eager
from byteps.torch.ops import push_pull, start_push_pull, synchronize_all

__all__ = ["all_true", "check_usable", "exchange", "is_eager", "is_sparse", "no_gradient", "outside_graphs"]


def check_usable() -> None:
    """Everything is: compiled steps break their graph at `exchange`."""


def is_eager() -> bool:
    return True


def outside_graphs() -> AbstractContextManager[Any]:
    return nullcontext()


def is_sparse(gradient: Any) -> bool:
    return False  # `exchange` makes them dense: so do Keras's optimizers


def no_gradient(variable: Any, sparse: bool) -> Any:
    return torch.zeros_like(variable.value)


@eager
def exchange(gradients: Sequence[torch.Tensor], names: Sequence[str], options: Options) -> list[torch.Tensor]:
    compressor = _compressor(options.compression)
    dense = [gradient.detach().to_dense() if gradient.is_sparse else gradient.detach() for gradient in gradients]
    compressed = [compressor.compress(gradient) for gradient in dense]
    reduced = synchronize_all(
        [
            start_push_pull(small, options.op, name, -place, in_place=False)
            for place, ((small, _), name) in enumerate(zip(compressed, names, strict=True))
        ]
    )
    return [compressor.decompress(small, ctx) for small, (_, ctx) in zip(reduced, compressed, strict=True)]


@eager
def all_true(flag: torch.Tensor, name: str) -> torch.Tensor:
    return push_pull(flag.to(torch.uint8), name=name, op=ReduceOp.Min).to(torch.bool)


def _compressor(compression: Any) -> AnyCompressor:
    named = isinstance(compression, Compression)
    return cast("AnyCompressor", getattr(Compressors, compression.name) if named else compression)
