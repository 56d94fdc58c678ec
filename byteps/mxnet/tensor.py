"""Converts arrays to the form that the core needs: dense, on the CPU, of a known dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import mxnet as mx

from byteps import _core
from byteps.buffer import DTYPE_CODES
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.mxnet.native import Description, describe
from byteps.ops import unsupported_dtype

__all__ = ["Staged", "copy_to_all", "stage", "sum_of_devices"]

NDArray: TypeAlias = mx.nd.NDArray

_NAMES = (
    *("float32", "float64", "float16", "uint8", "int32", "int8", "int64"),
    *("bool", "int16", "uint16", "uint32", "uint64", "bfloat16"),
)
_DTYPES = dict(enumerate(_NAMES))  # by MXNet's code
_ITEM_BYTES = {"bool": 1, "int16": 2, "uint16": 2, "uint32": 4, "uint64": 8} | _core.DTYPE_BYTES
_DENSE, _ROW_SPARSE = 0, 1
_GPU = 2


class Staged(NamedTuple):
    """An array, or a dense copy of it on the CPU."""

    array: NDArray
    nbytes: int
    dtype: int  # the core's code
    copy_back: Callable[[], None]  # copies `array` to the original in the engine


def stage(array: NDArray, what: str, *, any_dtype: bool = False) -> Staged:
    """Returns the array, or a copy, in the form that the core needs. Does not wait for its value.

    Args:
        array: dense or row-sparse, on any device.
        what: beginning of error messages.
        any_dtype: accept dtypes that the core cannot reduce.

    Raises:
        InvalidArgumentError: not an array, or of a dtype that cannot be reduced.
        UnsupportedError: an array in CSR format.
    """
    if not isinstance(array, mx.nd.NDArray):
        raise InvalidArgumentError(f"{what}: expected an NDArray, got {type(array).__name__}")
    array = array.as_nd_ndarray()  # for arrays of mx.np: a view for MXNet's older functions
    found = describe(array)
    name = _DTYPES[found.dtype]
    if name not in DTYPE_CODES and not any_dtype:
        raise unsupported_dtype(name, "convert it with astype()", what)
    extent = found.elements * _ITEM_BYTES[name], DTYPE_CODES.get(name, DTYPE_CODES["uint8"])
    if found.storage_type == _DENSE and not _is_on_gpu(found):
        return Staged(array, *extent, _nothing)
    copy = _dense_copy(array, found, what)
    return Staged(copy, *extent, lambda: (_copy_rows if found.storage_type == _ROW_SPARSE else _copy)(copy, array))


def _dense_copy(array: NDArray, found: Description, what: str) -> NDArray:
    if found.storage_type not in (_DENSE, _ROW_SPARSE):
        raise UnsupportedError(f"{what}: an array of storage type '{array.stype}': pass array.tostype('default')")
    dense = array.tostype("default") if found.storage_type == _ROW_SPARSE else array
    return dense.copyto(mx.cpu_pinned(found.device_id)) if _is_on_gpu(found) else dense


def _is_on_gpu(found: Description) -> bool:
    return bool(found.device_type == _GPU)


def _nothing() -> None:
    pass


def _copy(source: NDArray, target: NDArray) -> None:
    source.copyto(target)


def _copy_rows(source: NDArray, target: NDArray) -> None:
    source.as_in_context(target.context).tostype("row_sparse").copyto(target)


def sum_of_devices(arrays: Sequence[NDArray]) -> NDArray:
    """Returns the sum of the arrays, on the first one's device.

    A single array is returned itself.
    """
    if len(arrays) == 1:
        return arrays[0]
    context = arrays[0].context
    return mx.nd.add_n(*[array.as_nd_ndarray().as_in_context(context) for array in arrays])


def copy_to_all(source: NDArray, targets: Sequence[NDArray]) -> None:
    """Copies `source` to all `targets`, one for each device of this rank."""
    for target in targets:
        if target is not source:
            source.as_nd_ndarray().copyto(target.as_nd_ndarray())
