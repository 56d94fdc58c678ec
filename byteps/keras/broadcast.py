"""Making the ranks' models and optimizers equal."""

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

    Keras 3 has no collection of all variables, so it must be told whose: models of the scripts of BytePS and Horovod,
    which name none, are better served by callbacks.BroadcastGlobalVariablesCallback.

    Args:
        root_rank: whose.
        model: a built model, or a list of variables. The state of its optimizer, if it was compiled with one, is made
            where it does not exist yet, as when rank 0 alone has read a checkpoint.

    Raises:
        InvalidArgumentError: no model, or one that is not built. On all ranks: theirs differ.
    """
    if isinstance(root_rank, keras.Model):
        raise ArgumentTypeError(
            "broadcast_global_variables: the rank comes first: broadcast_global_variables(root_rank, model)"
        )
    if model is None:
        raise InvalidArgumentError(
            "broadcast_global_variables: Keras 3 does not know of all variables: pass the model as the second "
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
        broadcast_variables(_by_place("variable", model), root_rank)


def build_optimizer(model: Any) -> None:
    """Makes the variables of a built model's optimizer, if there are none yet."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)


def variables_of(model: Any) -> Named:
    """A built model's weights, and its optimizer's variables, with names that all ranks share.

    Not the states of seed generators: ranks are to drop out different units of their different samples. Nor those of
    metrics, which are about this rank's samples until their results are averaged.
    """
    optimizer = getattr(model, "optimizer", None)
    weights = list(zip(stable_names(model.weights), model.weights, strict=True))
    return weights + _by_place("optimizer", [] if optimizer is None else optimizer.variables)


def broadcast_variables(named: Named, root_rank: int, values: Sequence[Array] | None = None) -> None:
    """Replaces the variables by those of rank `root_rank`, all at once. Blocks.

    Args:
        named: names, and variables of Keras or TensorFlow, of any dtype.
        root_rank: whose.
        values: what to send instead of the root's variables, which get it too.

    Raises:
        InvalidArgumentError: on all ranks: theirs differ in number, name, dtype or shape.
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


def _by_place(kind: str, variables: Sequence[Any]) -> Named:
    """Optimizers write the names of models, counters of Keras and all, into those of their own variables."""
    return [(f"{kind} {index}", variable) for index, variable in enumerate(variables)]
