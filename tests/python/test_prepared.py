"""`InFlight.start_prepared`: push_pulls whose constant arguments are converted once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.nodes import DEADLINE_S, job

from byteps import Sum
from byteps.buffer import DTYPE_CODES
from byteps.errors import InvalidArgumentError
from byteps.handles import Prepared
from byteps.in_flight import InFlight
from byteps.nodes import LocalNode

Array = npt.NDArray[Any]


@pytest.fixture
def ranks() -> Iterator[list[InFlight]]:
    with job([0, 0]) as nodes:
        yield [InFlight(node) for node in nodes]


def prepare(rank: InFlight, size: int = 4, name: str = "x") -> Prepared:
    prepared = rank.prepare(name, 4 * size, DTYPE_CODES["float32"], Sum.value, (size,))
    assert prepared is not None
    return prepared


def start(rank: InFlight, prepared: Prepared, array: Array, step: int) -> None:
    rank.start_prepared(prepared, array.ctypes.data, 0, step, array, None)


def test_it_is_started_again_and_again_with_other_memory(ranks: list[InFlight]) -> None:
    prepared = [prepare(rank) for rank in ranks]
    for step in range(1, 5):
        arrays = [np.full(4, step + rank, np.float32) for rank in range(2)]
        for rank, each, array in zip(ranks, prepared, arrays, strict=True):
            start(rank, each, array, step)
        for each in prepared:
            assert each.wait(DEADLINE_S) is None and each.synchronize() is None and each.poll()
        assert all((array == 2 * step + 1).all() for array in arrays)


def test_memory_stays_while_it_is_in_flight_and_the_name_is_taken(ranks: list[InFlight]) -> None:
    prepared, array = prepare(ranks[0]), np.ones(4, np.float32)
    alive = weakref.ref(array)
    start(ranks[0], prepared, array, 1)
    del array
    gc.collect()
    assert alive() is not None and not prepared.poll()
    with pytest.raises(InvalidArgumentError, match="'x': a tensor of this name is still in flight"):
        start(ranks[0], prepared, np.ones(4, np.float32), 2)
    start(ranks[1], prepare(ranks[1]), np.ones(4, np.float32), 1)
    assert prepared.wait(DEADLINE_S) is None
    gc.collect()
    assert alive() is None


def test_an_error_is_that_of_one_start_only(ranks: list[InFlight]) -> None:
    same, other = prepare(ranks[0]), prepare(ranks[1], size=5)
    start(ranks[0], same, np.ones(4, np.float32), 1)
    start(ranks[1], other, np.ones(5, np.float32), 1)
    for each in (same, other):
        with pytest.raises(InvalidArgumentError, match="x"):
            each.synchronize()
    fitting = prepare(ranks[1])
    start(ranks[0], same, np.ones(4, np.float32), 2)
    start(ranks[1], fitting, np.ones(4, np.float32), 2)
    assert same.wait(DEADLINE_S) is None and fitting.wait(DEADLINE_S) is None


def test_a_node_without_other_ranks_prepares_nothing() -> None:
    assert InFlight(LocalNode()).prepare("x", 4, DTYPE_CODES["float32"], Sum.value, (1,)) is None
