"""Parameters that the only rank of a job holds."""

from __future__ import annotations

import numpy as np
import pytest

from byteps import _core
from byteps.errors import InvalidArgumentError
from byteps.nodes import LocalNode


def push_pull(node: LocalNode, op: str, values: np.ndarray, name: str = "w") -> np.ndarray:
    result = np.empty_like(values)
    pointers = values.ctypes.data, result.ctypes.data
    dtype = _core.DTYPE_CODES[values.dtype.name]
    node.push_pull(name, *pointers, values.nbytes, dtype, _core.OP_CODES[op], 0, 0, 255)
    return result


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int32", "int64"])
def test_values_add_up_to_what_was_seeded_first(dtype: str) -> None:
    node = LocalNode()
    seed = np.arange(33, dtype=dtype)
    ones = np.ones(33, dtype)
    assert (push_pull(node, "seed", seed) == seed).all()
    assert (push_pull(node, "accumulate", ones) == seed + 1).all()
    assert (push_pull(node, "seed", ones) == seed + 1).all()
    assert (push_pull(node, "accumulate", ones) == seed + 2).all()
    assert (push_pull(node, "seed", ones, "another") == ones).all()
    assert (push_pull(node, "sum", ones) == ones).all(), "ordinary push_pulls are independent of parameters"


@pytest.mark.parametrize("other", [np.ones(4, "float32"), np.ones(3, "int32")], ids=["size", "data type"])
def test_what_is_kept_stays_of_its_kind(other: np.ndarray) -> None:
    node = LocalNode()
    push_pull(node, "seed", np.ones(3, "float32"))
    for op in ("seed", "accumulate"):
        with pytest.raises(InvalidArgumentError, match="'w' is held as 12 bytes"):
            push_pull(node, op, other)


def test_there_is_nothing_to_add_to_before_the_seed() -> None:
    with pytest.raises(InvalidArgumentError, match="'w' before it was seeded"):
        push_pull(LocalNode(), "accumulate", np.ones(3))
