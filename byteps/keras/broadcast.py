"""Broadcasts of models and optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from byteps import numpy as arrays
from byteps.agreement import check_agreement
from byteps.errors import ArgumentTypeError, InvalidArgumentError
from byteps.keras.naming import stable_names
from byteps.ops import check_root
from byteps.runtime import current_job

__all__ = ["broadcast_global_variables", "broadcast_variables", "build_optimizer", "variables_of"]

Array = np.ndarray[Any, Any]
Named = list[tuple[str, Any]]


def broadcast_global_variables(root_rank: int, model: Any = None) -> None:
    """Replaces a model's weights and its optimizer's state by those of rank `root_rank`. Blocks.

    Keras 3 has no collection of all variables, so the model is required. Scripts of BytePS and
    Horovod, which pass none, should use callbacks.BroadcastGlobalVariablesCallback.

    Args:
        root_rank: the rank that sends its values.
        model: a built model, or a list of variables. If the model has an optimizer that is not
            built, it is built: rank 0 may have read its state from a checkpoint.

    Raises:
        InvalidArgumentError: no model, or one that is not built. On all ranks: their variables
            differ.
    """
    if isinstance(root_rank, keras.Model):
        raise ArgumentTypeError(
            "broadcast_global_variables: the rank comes first: broadcast_global_variables(root_rank, model)"
        )
    if model is None:
        raise InvalidArgumentError(
            "broadcast_global_variables: Keras 3 has no list of all variables: pass the model as the second "
            "argument, or use callbacks.BroadcastGlobalVariablesCallback"
        )
    if isinstance(model, keras.Model):
        if not model.built:
            raise InvalidArgumentError(
                f"broadcast_global_variables: the model '{model.name}' has no variables yet: call "
                "model.build(input_shape)"
            )
        build_optimizer(model)
        broadcast_variables(variables_of(model), root_rank)
    else:
        broadcast_variables(_numbered("variable", model), root_rank)


def build_optimizer(model: Any, optimizer: Any = None) -> None:
    """Builds the optimizer of a built model, or another one for it, unless it is built or None."""
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)


def variables_of(model: Any, optimizer: Any = None) -> Named:
    """Returns a built model's weights and the variables of its optimizer, or of another one, with
    common names.

    Leaves out the states of seed generators, since dropout should differ between ranks, and those
    of metrics, which count this rank's samples.
    """
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    weights = list(zip(stable_names(model.weights), model.weights, strict=True))
    return weights + _numbered("optimizer", [] if optimizer is None else optimizer.variables)


def broadcast_variables(named: Named, root_rank: int, values: Sequence[Array] | None = None) -> None:
    """Replaces the variables by those of rank `root_rank`, all at once. Blocks.

    Args:
        named: names, and variables of Keras or TensorFlow, of any dtype.
        root_rank: the rank that sends its values.
        values: the values that the root sends, instead of its variables' values. The root's
            variables are replaced by them, too.

    Raises:
        InvalidArgumentError: on all ranks: their variables differ in number, name, dtype or shape.
    """
    check_root(root_rank)
    names, variables = [name for name, _ in named], [variable for _, variable in named]
    lines = [f"'{name}' of {keras.backend.standardize_dtype(v.dtype)} {list(v.shape)}" for name, v in named]
    check_agreement("broadcast of variables", lines, "Variable.agreement")
    if current_job().size == 1 and values is None:
        return
    own = [np.asarray(variable.numpy()) for variable in variables] if values is None else list(values)
    roots = arrays.broadcast_arrays(own, root_rank, [f"Variable.{name}" for name in names])
    if current_job().rank != root_rank or values is not None:
        for variable, array in zip(variables, roots, strict=True):
            variable.assign(array)


def _numbered(kind: str, variables: Sequence[Any]) -> Named:
    """Names variables by index: the names of an optimizer's variables have counters of Keras."""
    return [(f"{kind} {index}", variable) for index, variable in enumerate(variables)]
