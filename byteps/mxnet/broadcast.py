"""Making the ranks' models equal before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import Parameter

from byteps.agreement import check_agreement
from byteps.errors import InvalidArgumentError
from byteps.mxnet.exchange import Exchange
from byteps.ops import ReduceOp, check_root

__all__ = ["broadcast_parameter", "broadcast_parameters"]


def broadcast_parameters(params: Mapping[str, Any], root_rank: int = 0) -> None:
    """Replaces the parameters by those of rank `root_rank`, in place.

    Returns when all ranks have called it; the arrays follow in the engine. Parameters whose shapes are not known yet
    are replaced as soon as their first use initializes them, also if it has done so on other ranks already.

    Args:
        params: arrays by name, as `Module.get_params()` has them; or what gluon's `collect_params()` returns. The same
            number of them in the same order on all ranks; their names may differ, as gluon numbers the blocks of each
            process.
        root_rank: whose parameters.

    Raises:
        InvalidArgumentError: something else is given. On all ranks: the numbers or dtypes of their parameters differ.
    """
    check_root(root_rank)
    if not isinstance(params, Mapping) and not hasattr(params, "items"):
        raise InvalidArgumentError(
            f"broadcast_parameters: {type(params).__name__} given: expected a dict of NDArrays or what "
            "collect_params() returns"
        )
    named = list(params.items())
    for name, value in named:
        if not isinstance(value, (mx.nd.NDArray, Parameter)):
            raise InvalidArgumentError(
                f"broadcast_parameters: '{name}' is {type(value).__name__}: expected an NDArray or a Parameter"
            )
    lines = [f"parameter {number}: {np.dtype(value.dtype)}" for number, (_, value) in enumerate(named)]
    exchange = Exchange(ReduceOp.Average)
    check_agreement("broadcast_parameters", lines, f"{exchange.prefix}agreement")
    for number, (_, value) in enumerate(named):
        if isinstance(value, Parameter):
            broadcast_parameter(value, number, exchange, root_rank)
        else:
            exchange.broadcast(number, [value], root_rank)


def broadcast_parameter(parameter: Parameter, number: int, exchange: Exchange, root_rank: int) -> None:
    """Replaces a parameter of gluon by rank `root_rank`'s, now or as soon as it is initialized.

    Raises:
        InvalidArgumentError: nobody has called initialize().
    """
    if parameter._data is not None:
        exchange.broadcast(number, parameter.list_data(), root_rank)
    elif parameter._deferred_init:
        _call_after_init(parameter, lambda: exchange.broadcast(number, parameter.list_data(), root_rank))
    else:
        raise InvalidArgumentError(
            f"broadcast_parameters: Parameter '{parameter.name}' has no value: call initialize() on the model first"
        )


def _call_after_init(parameter: Parameter, then: Callable[[], None]) -> None:
    """Once: gluon calls _init_impl when shapes become known, and when values are loaded from a file."""

    def init_and_then(*args: Any, **kwargs: Any) -> None:
        del parameter._init_impl  # the class has it still
        parameter._init_impl(*args, **kwargs)
        then()

    parameter._init_impl = init_and_then
