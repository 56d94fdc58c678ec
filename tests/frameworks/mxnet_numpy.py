"""Common code of the cases of MXNet with NumPy.

It imports MXNet, and has to be imported before anything else does that.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

BEFORE = dict(vars(np))

from byteps.mxnet.numpy_names import import_mxnet  # noqa: E402

mx = import_mxnet()
NUMPY_2 = int(np.__version__.split(".")[0]) >= 2
DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")


def same(got: object, expected: object, dtype: object = None) -> None:
    got = got.asnumpy() if hasattr(got, "asnumpy") else np.asarray(got)
    if dtype is not None:
        assert got.dtype == np.dtype(dtype), got.dtype
    np.testing.assert_allclose(got, np.asarray(expected), rtol=1e-5, atol=1e-7)


@contextmanager
def numpy_arrays() -> Iterator[None]:
    """mx.np instead of mx.nd in gluon."""
    mx.npx.set_np()
    try:
        yield
    finally:
        mx.npx.reset_np()


def in_a_folder(case: Callable[[Path], None]) -> Callable[[], None]:
    """A case that gets a folder of its own."""

    @functools.wraps(case)
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            case(Path(folder))

    return run
