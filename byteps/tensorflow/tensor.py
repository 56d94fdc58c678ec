"""Conversion and names of tensors, and errors of operators as exceptions of byteps."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import tensorflow as tf

from byteps import ops
from byteps.buffer import DTYPE_CODES
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.per_job import PerJob
from byteps.runtime import current_job
from byteps.tensorflow.native import EXCEPTIONS

__all__ = ["DTYPES", "as_written", "automatic_name", "core_errors", "dense", "one_call", "variable_names"]

DTYPES = [tf.as_dtype(name) for name in DTYPE_CODES]

F = TypeVar("F", bound=Callable[..., Any])


def as_written(function: F) -> F:
    """Keeps AutoGraph from rewriting a function of this package."""
    return cast(F, tf.autograph.experimental.do_not_convert(function))


_ADVICE = {
    tf.bool: "convert it with tf.cast(tensor, tf.uint8)",
    tf.complex64: "pass tf.math.real(tensor) and tf.math.imag(tensor)",
    tf.complex128: "pass tf.math.real(tensor) and tf.math.imag(tensor)",
    tf.string: "use broadcast_object for strings",
}


def dense(value: Any, what: str, *, any_dtype: bool = False) -> tf.Tensor:
    """Returns `value` as a dense tensor of a dtype that the core can reduce.

    Args:
        value: a tensor, a variable, or a value that TensorFlow converts to a tensor.
        what: beginning of error messages.
        any_dtype: accept all dtypes of a fixed size.

    Raises:
        UnsupportedError: a sparse, ragged or symbolic tensor.
        InvalidArgumentError: not a tensor, or of another dtype.
    """
    if isinstance(value, tf.SparseTensor):
        raise UnsupportedError(f"{what}: a SparseTensor is not supported: pass tf.sparse.to_dense(tensor)")
    if isinstance(value, tf.RaggedTensor):
        raise UnsupportedError(f"{what}: a RaggedTensor is not supported: pass tensor.to_tensor(), or its flat_values")
    if type(value).__name__ == "KerasTensor":
        raise UnsupportedError(
            f"{what}: a symbolic Keras tensor has no value yet: call this in a layer's call(), or in a Lambda layer"
        )
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{what}: expected a tensor, got {type(value).__name__}: {error}") from None
    if tensor.dtype not in DTYPES and not (any_dtype and _has_bits(tensor.dtype)):
        advice = _ADVICE.get(tensor.dtype, "convert it with tf.cast()")
        raise ops.unsupported_dtype(tensor.dtype.name, advice, what, [dtype.name for dtype in DTYPES])
    return tensor


def _has_bits(dtype: tf.DType) -> bool:
    return bool(dtype == tf.bool or dtype.is_integer or dtype.is_floating or dtype.is_complex)


_graph_counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def automatic_name() -> str:
    """Returns a name for an unnamed tensor: the same on all ranks that make the same calls.

    It contains nothing of the tensor or the operation, so that ranks with different calls get an
    error. Eagerly names are reused in a bounded cycle. In a graph the name has the tensor's index
    among the unnamed tensors of the outermost function, so it does not depend on other traced
    functions.
    """
    if tf.executing_eagerly():
        return current_job().in_flight.automatic_name()
    graph = tf.compat.v1.get_default_graph()
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):  # an outer function
        graph = graph.outer_graph
    _graph_counts[graph] = _graph_counts.get(graph, 0) + 1
    return f"byteps.graph.{getattr(graph, 'name', '')}.{_graph_counts[graph]}"


@contextmanager
def one_call(name: str | None) -> Iterator[str]:
    """`byteps.ops.one_call`, also for nodes of graphs. A failed tracing counts as a call."""
    with ops.one_call(automatic_name() if name is None else name) as known, core_errors():
        yield known


class _Names:
    """The names of variables in one job."""

    def __init__(self) -> None:
        self.by_id: dict[int, tuple[weakref.ref[Any], str]] = {}
        self.so_far: Counter[str] = Counter()

    def of(self, name: str, variable: Any) -> str:
        key = id(variable)
        if key in self.by_id and self.by_id[key][0]() is variable:
            return self.by_id[key][1]
        number = self.so_far[name]
        self.so_far[name] += 1
        distinct = f"{name}#{number}" if number else name
        self.by_id[key] = weakref.ref(variable, lambda _: self.by_id.pop(key, None)), distinct
        return distinct


_names = PerJob(_Names)


def variable_names(variables: Sequence[Any], prefix: str) -> list[str]:
    """Returns names of variables: a Keras variable's path or another one's name, and the shape.

    The second variable of the same name in a job gets `#1`, and so on. A name is not reused after
    its variable is deleted, since ranks may delete variables at different times. In a graph of
    tf.compat.v1 names are unique.
    """
    names = [_plain_name(variable) for variable in variables]
    if tf.compat.v1.executing_eagerly_outside_functions():
        names = [_names.get().of(name, variable) for name, variable in zip(names, variables, strict=True)]
    return [prefix + name for name in names]


def _plain_name(variable: Any) -> str:
    name = getattr(variable, "path", None) or re.sub(r":0$", "", variable.name)
    return f"{name}.{'x'.join(map(str, variable.shape))}"


@contextmanager
def core_errors() -> Iterator[None]:
    """Converts eager errors of byteps's operators to exceptions of byteps.errors."""
    try:
        yield
    except tf.errors.OpError as error:
        kind = EXCEPTIONS.get(type(error))
        if kind is None or not tf.executing_eagerly():
            raise
        known = kind(_own_words(error.message))
        known.counted = True  # the core has counted the call
        raise known from None


def _own_words(message: str) -> str:
    """Removes from a message of the core the names and locations of operators."""
    message = re.sub(r"(?s)^Graph execution error:.*\n\n(?=[^\n]+\n\t \[\[\{\{node)", "", message)
    return re.sub(r"(?s)^\{\{function_node .*?\}\} |\n\t \[\[\{\{node.*$| \[Op:\w+\].*$", "", message)
