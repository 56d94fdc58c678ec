"""Loading of models with distributed optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras

from byteps.keras.compression import Compression
from byteps.keras.optimizer import DistributedOptimizer

__all__ = ["load_model"]


def load_model(
    filepath: str | Path,
    custom_optimizers: Iterable[type[Any]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    **options: Any,
) -> Any:
    """Loads a model with `keras.saving.load_model` and makes its optimizer a DistributedOptimizer.

    The optimizer keeps its state. The file may come from plain Keras: it does not store whether the
    optimizer was distributed.

    Args:
        filepath: path of a .keras or .h5 file.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: other objects that Keras does not know, by name.
        compression: see `DistributedOptimizer`.
        options: other arguments of `DistributedOptimizer`, and safe_mode of Keras.

    Returns:
        The model. If it was saved without an optimizer, it has none.
    """
    known = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
    known.update(custom_objects or {})
    safe_mode = options.pop("safe_mode", True)
    model = keras.saving.load_model(filepath, custom_objects=known or None, safe_mode=safe_mode)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        DistributedOptimizer(optimizer, compression=compression, **options)
    return model
