"""`BlockingCalls`: collectives of torch.distributed in which the calling thread waits."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from types import FrameType
from typing import Any, NoReturn

import pytest
import torch
from support.nodes import DEADLINE_S, job
from torch.distributed import AllreduceOptions, BroadcastOptions
from torch.distributed import ReduceOp as TorchOp

from byteps import _core
from byteps.call_names import AUTOMATIC_NAMES
from byteps.errors import BytePSError
from byteps.handles import Handle
from byteps.in_flight import InFlight
from byteps.torch.c10d.arguments import CORE_OPS
from byteps.torch.tensor import READER


class Rank:
    """A rank's calls, and what goes on after them: handles with the numbers of their collectives."""

    def __init__(self, node: _core.Node, limit_s: float = DEADLINE_S) -> None:
        self.in_flight = InFlight(node)
        self.went_on: list[tuple[Handle, int]] = []
        calls = self.in_flight.blocking_calls("family", READER, CORE_OPS, limit_s, count(1), self._go_on)
        assert calls is not None
        self.calls = calls

    def _go_on(self, handle: Handle, number: int) -> str:
        self.went_on.append((handle, number))
        return "goes on"

    def all_reduce(self, tensor: Any, op: Any = TorchOp.SUM, limit_s: float = -1.0) -> object:
        opts = AllreduceOptions()
        opts.asyncOp, opts.reduceOp, opts.timeout = False, op, timedelta(seconds=limit_s)
        return self.calls.all_reduce([tensor], opts)

    def broadcast(self, tensor: Any, root: int) -> object:
        opts = BroadcastOptions()
        opts.asyncOp, opts.rootRank = False, root
        return self.calls.broadcast([tensor], opts)


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    with job([0, 0]) as nodes:
        yield [Rank(node) for node in nodes]


def both(ranks: list[Rank], *calls: Any) -> list[object]:
    results: list[object] = [None, None]

    def call(rank: int) -> None:
        results[rank] = calls[rank](ranks[rank])

    thread = threading.Thread(target=call, args=(1,))
    thread.start()
    call(0)
    thread.join()
    return results


@pytest.mark.parametrize(
    ("op", "result"), [(TorchOp.SUM, 5), (TorchOp.AVG, 2.5), (TorchOp.MIN, 2), (TorchOp.MAX, 3), (TorchOp.PRODUCT, 6)]
)
def test_tensors_are_reduced_and_broadcast_again_and_again(ranks: list[Rank], op: Any, result: float) -> None:
    for _ in range(AUTOMATIC_NAMES // 2 + 2):  # names come again
        tensors = [torch.full((3, 5), 2.0 + rank, dtype=torch.bfloat16) for rank in range(2)]
        assert both(ranks, *(lambda rank, t=t: rank.all_reduce(t, op) for t in tensors)) == [True, True]
        assert all(bool((tensor == result).all()) for tensor in tensors)
        tensors = [torch.full((7,), rank, dtype=torch.int64) for rank in range(2)]
        assert both(ranks, *(lambda rank, t=t: rank.broadcast(t, 1) for t in tensors)) == [True, True]
        assert all(bool((tensor == 1).all()) for tensor in tensors)
    assert ranks[0].in_flight.names.reserved("family") == []


def test_what_it_does_not_do_is_not_begun(ranks: list[Rank]) -> None:
    rank, plain = ranks[0], torch.ones(4, 4)

    class Subclass(torch.Tensor):
        pass

    unusual = [plain.t()[:2], plain.to_sparse(), plain.as_subclass(Subclass), plain > 0, plain.to("meta")]
    unusual.append(torch.view_as_complex(torch.ones(2, 2)).conj().imag)  # is negated when it is read
    assert unusual[-1].is_neg()
    for tensor in unusual:
        assert rank.all_reduce(tensor) is False
    assert rank.all_reduce(plain, TorchOp.BAND) is False
    assert rank.broadcast(plain, 2) is False and rank.broadcast(plain, -1) is False
    opts = AllreduceOptions()
    assert rank.calls.all_reduce([plain], opts) is False  # the caller does not wait
    opts.asyncOp = False
    assert rank.calls.all_reduce([plain, plain], opts) is False
    assert rank.calls.all_reduce(plain, opts) is False and rank.calls.all_reduce([plain], None) is False
    assert rank.in_flight.names.next_number("family") == 1
    assert rank.in_flight.names.next_name("family") == "family.0"


def test_a_name_that_is_taken_is_left_to_others(ranks: list[Rank]) -> None:
    rank = ranks[0]
    rank.in_flight.names.reserve("family.0")
    assert rank.all_reduce(torch.ones(1)) is False
    rank.in_flight.names.release("family.0")
    assert rank.all_reduce(torch.ones(1), limit_s=0.05) == "goes on"
    for _ in range(AUTOMATIC_NAMES - 1):
        rank.in_flight.names.next_name("family")
    assert rank.all_reduce(torch.ones(1)) is False  # "family.0" is in flight


def test_another_node_ends_it(ranks: list[Rank]) -> None:
    """As after a fork, where the node of the parent must not be touched."""
    ranks[0].in_flight.node = ranks[1].in_flight.node
    assert ranks[0].all_reduce(torch.ones(1)) is False


def test_what_times_out_goes_on_and_keeps_its_memory(ranks: list[Rank]) -> None:
    tensor = torch.ones(4)
    alive, values = weakref.ref(tensor), tensor.detach()
    assert ranks[0].all_reduce(tensor, limit_s=0.05) == "goes on"
    ranks[0].calls.limit_s = 0.05
    assert ranks[0].all_reduce(torch.ones(1)) == "goes on"
    (handle, number), (_, next_number) = ranks[0].went_on
    assert (number, next_number) == (1, 2) and not handle.poll()
    del tensor
    assert alive() is not None
    assert ranks[1].all_reduce(torch.ones(4)) is True
    assert handle.wait(DEADLINE_S) is None and bool((values == 2).all())
    gc.collect()
    assert alive() is None


class AlarmError(Exception):
    """Raised by a handler of a signal."""


def test_a_signal_leaves_it_in_flight(ranks: list[Rank]) -> None:
    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise AlarmError

    tensor = torch.ones(4)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(AlarmError):
            ranks[0].all_reduce(tensor)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    ((handle, number),) = ranks[0].went_on
    assert number == 1 and not handle.poll()
    assert ranks[1].all_reduce(torch.ones(4)) is True
    assert handle.wait(DEADLINE_S) is None and bool((tensor == 2).all())


def test_an_error_leaves_nothing_behind(ranks: list[Rank]) -> None:
    def call(rank: Rank, size: int) -> object:
        with pytest.raises(BytePSError, match=r"family\.0"):
            rank.all_reduce(torch.ones(size))
        return "failed"

    assert both(ranks, lambda rank: call(rank, 4), lambda rank: call(rank, 3)) == ["failed"] * 2
    assert ranks[0].went_on == [] and ranks[0].in_flight.handle_of("family.0") is None
    assert ranks[0].in_flight.names.reserved("family") == []


def test_other_threads_learn_of_the_end(ranks: list[Rank]) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ranks[0].all_reduce, args=(torch.ones(1),))
    thread.start()
    while not ranks[0].in_flight.names.reserved("family"):
        pass
    ranks[0].in_flight.names.on_release("family.0", ended.set)
    assert not ended.is_set()
    assert ranks[1].all_reduce(torch.ones(1)) is True
    assert ended.wait(DEADLINE_S)
    thread.join()
