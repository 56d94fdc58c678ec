"""`push_pull_and_wait`: start and wait in one call of the core."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pytest
from support.nodes import DEADLINE_S, job

from byteps import Sum, _core
from byteps.buffer import Buffer
from byteps.errors import InvalidArgumentError, TimeoutError
from byteps.handles import Handle
from byteps.in_flight import InFlight

Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[_core.Node]]:
    with job([0, 0]) as nodes:
        yield nodes


@pytest.fixture
def ranks(nodes: list[_core.Node]) -> list[InFlight]:
    return [InFlight(node) for node in nodes]


def reduce(rank: InFlight, name: str, array: Array, timeout_s: float | None = DEADLINE_S) -> Handle | None:
    memory = Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array, array.shape)
    return rank.push_pull_and_wait(name, memory, Sum.value, 0, timeout_s=timeout_s)


def beside(rank: InFlight, name: str, array: Array) -> threading.Thread:
    thread = threading.Thread(target=reduce, args=(rank, name, array))
    thread.start()
    return thread


def test_the_sum_is_there_when_it_returns(ranks: list[InFlight]) -> None:
    for value in range(3):
        arrays = [np.full((3, 5), value + rank, np.float32) for rank in range(2)]
        thread = beside(ranks[1], "sum", arrays[1])
        assert reduce(ranks[0], "sum", arrays[0]) is None
        thread.join()
        assert all((array == 2 * value + 1).all() for array in arrays)


def test_what_times_out_goes_on_and_keeps_its_memory(ranks: list[InFlight]) -> None:
    array = np.ones(4, np.float32)
    alive, values = weakref.ref(array), array[:]
    handle = reduce(ranks[0], "late", array, timeout_s=0.05)
    assert handle is not None and not handle.poll()
    with pytest.raises(InvalidArgumentError, match="'late': a tensor of this name is still in flight"):
        reduce(ranks[0], "late", values)
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    del array
    assert alive() is not None
    reduce(ranks[1], "late", np.ones(4, np.float32))
    assert handle.wait(DEADLINE_S) is None
    assert (values == 2).all()
    gc.collect()
    assert ranks[0].handle_of("late") is None


class AlarmError(Exception):
    """Raised by a handler of a signal."""


def test_a_signal_leaves_it_in_flight(ranks: list[InFlight]) -> None:
    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise AlarmError

    array = np.ones(4, np.float32)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(AlarmError) as caught:
            reduce(ranks[0], "alarm", array)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    ranks[0].refuse("alarm", caught.value)  # does nothing: the call counts already
    handle = ranks[0].handle_of("alarm")
    assert handle is not None and not handle.poll()
    reduce(ranks[1], "alarm", np.ones(4, np.float32))
    assert handle.wait(DEADLINE_S) is None
    assert (array == 2).all()


def test_an_error_names_what_differs_and_leaves_nothing_behind(ranks: list[InFlight]) -> None:
    def fail() -> None:
        with pytest.raises(InvalidArgumentError):
            reduce(ranks[1], "unlike", np.ones(3))

    thread = threading.Thread(target=fail)
    thread.start()
    with pytest.raises(InvalidArgumentError, match="unlike") as caught:
        reduce(ranks[0], "unlike", np.ones(4))
    thread.join()
    assert getattr(caught.value, "counted", False)
    assert ranks[0].handle_of("unlike") is None
