"""Broadcasts of parameters."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import Parameter

from byteps.agreement import are_alike, check_agreement
from byteps.errors import ArgumentTypeError, InvalidArgumentError
from byteps.mxnet.exchange import any_rank
from byteps.mxnet.ops import broadcast_
from byteps.mxnet.parameters import call_after_init
from byteps.mxnet.tensor import copy_to_all
from byteps.ops import check_root

__all__ = [
    "broadcast_arrays",
    "broadcast_parameter",
    "broadcast_parameters",
    "check_parameters",
    "in_common_order",
]

PREFIX = "mxnet.broadcast."


def broadcast_parameters(params: Mapping[str, Any], root_rank: int = 0) -> None:
    """Replaces the parameters by those of rank `root_rank`, in place.

    Returns when all ranks have called it; the engine replaces the arrays later. Parameters of
    unknown shape are replaced when their first use initializes them, which may happen at other
    times on other ranks.

    Args:
        params: arrays by name, as from `Module.get_params()`, or the result of gluon's
            `collect_params()`. If all ranks have the same names, parameters belong together by
            name, otherwise by their order, since gluon numbers blocks differently in each process.
        root_rank: the rank that sends its parameters.

    Raises:
        InvalidArgumentError: `params` is of another kind. On all ranks: their parameters differ.
    """
    check_root(root_rank)
    if not isinstance(params, Mapping) and not hasattr(params, "items"):
        raise ArgumentTypeError(
            f"broadcast_parameters: {type(params).__name__} given: expected a dict of NDArrays or what "
            "collect_params() returns: broadcast_parameters(net.collect_params(), root_rank)"
        )
    named = in_common_order(params.items(), PREFIX)
    for name, value in named:
        if not isinstance(value, (mx.nd.NDArray, Parameter)):
            raise InvalidArgumentError(
                f"broadcast_parameters: '{name}' is {type(value).__name__}: expected an NDArray or a Parameter"
            )
    values = [value for _, value in named]
    check_parameters("broadcast_parameters", values, PREFIX)
    for number, value in enumerate(values):
        if isinstance(value, Parameter):
            broadcast_parameter(value, number, root_rank, PREFIX)
        else:
            broadcast_arrays([value], number, root_rank, PREFIX)


def in_common_order(named: Iterable[tuple[str, Any]], prefix: str) -> list[tuple[str, Any]]:
    """Returns the items sorted by name if all ranks have the same names, otherwise unchanged.

    Blocks until all ranks have called it.
    """
    named = list(named)
    by_name = sorted(named, key=lambda item: str(item[0]))
    return by_name if are_alike([str(name) for name, _ in by_name], f"{prefix}names") else named


def check_parameters(caller: str, values: Sequence[Any], prefix: str) -> None:
    """Raises InvalidArgumentError on all ranks if their arrays differ in dtype or shape.

    Compares only the shapes that are known on all ranks. Blocks until all ranks have called it.
    """
    lines = [f"parameter {number}: {np.dtype(value.dtype)}" for number, value in enumerate(values)]
    check_agreement(caller, lines, f"{prefix}dtypes")
    unknown = any_rank([isinstance(value, Parameter) and value._data is None for value in values], f"{prefix}unknown")
    lines = [
        f"{line} {'?' if how else list(value.shape)}" for line, value, how in zip(lines, values, unknown, strict=True)
    ]
    check_agreement(caller, lines, f"{prefix}shapes")


def broadcast_parameter(parameter: Parameter, number: int, root_rank: int, prefix: str) -> None:
    """Replaces a parameter of gluon by rank `root_rank`'s, now or when it is initialized.

    Raises:
        InvalidArgumentError: initialize() was not called.
    """
    if parameter._data is not None:
        broadcast_arrays(parameter.list_data(), number, root_rank, prefix)
    elif parameter._deferred_init:
        its = weakref.proxy(parameter)
        call_after_init(parameter, lambda: broadcast_arrays(its.list_data(), number, root_rank, prefix))
    else:
        raise InvalidArgumentError(
            f"broadcast_parameters: Parameter '{parameter.name}' has no value: call initialize() on the model first"
        )


def broadcast_arrays(arrays: Sequence[mx.nd.NDArray], key: int | str, root_rank: int, prefix: str) -> None:
    """Replaces the arrays, one for each device of this rank, by rank `root_rank`'s first one."""
    array = arrays[0]
    broadcast_(array, root_rank, f"{prefix}parameter.{key}")
    copy_to_all(array, arrays)
