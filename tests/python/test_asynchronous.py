"""Rules of asynchronous training that adapters share."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from byteps import asynchronous
from byteps.asynchronous import change_divisor, check_op_of_changes, describe_mode, settle_weights
from byteps.errors import InvalidArgumentError
from byteps.ops import ReduceOp


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of the node of a job of 4 ranks."""
    events: list[str] = []
    node = SimpleNamespace(barrier=lambda: events.append("barrier"))
    monkeypatch.setattr(asynchronous, "current_job", lambda: SimpleNamespace(node=node, size=4))
    return events


def test_modes_differ_by_staleness() -> None:
    modes = [describe_mode(staleness) for staleness in (None, 0, 3, math.inf)]
    assert len(set(modes)) == len(modes)


@pytest.mark.parametrize("op", [ReduceOp.Min, ReduceOp.Max, ReduceOp.Product])
def test_changes_can_only_be_added(op: ReduceOp) -> None:
    with pytest.raises(InvalidArgumentError, match=f"Optimizer: op is {op.name}.*use Average or Sum"):
        check_op_of_changes("Optimizer", op)


@pytest.mark.usefixtures("events")
def test_an_average_divides_changes_by_the_number_of_ranks() -> None:
    assert (change_divisor(ReduceOp.Average), change_divisor(ReduceOp.Sum)) == (4, 1)


def test_ranks_read_the_weights_between_two_barriers(events: list[str]) -> None:
    settle_weights(lambda: events.append("read"))
    assert events == ["barrier", "read", "barrier"]
