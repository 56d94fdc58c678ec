"""Handles in flight, over a node whose completions the test decides."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from unittest import mock

import pytest

pytest.importorskip("byteps._core")

from byteps.call_names import AUTOMATIC_NAMES
from byteps.callbacks import MAX_IDLE_THREADS
from byteps.errors import InvalidArgumentError, NotInitializedError, PeerLostError, TimeoutError
from byteps.handles import Handle
from byteps.in_flight import FIRST_SWEEP, InFlight
from byteps.nodes import LocalNode


class ScriptedNode(LocalNode):
    """Push_pulls are done when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []
        self.outcomes: dict[int, Exception | None] = {}
        self.waited_for: list[int] = []
        self.announced: list[int] = []
        self.done: queue.Queue[int | None] = queue.Queue()

    def push_pull(self, name: str, *_: int) -> int:
        self.started.append(name)
        return len(self.started) - 1

    def poll(self, handle: int) -> bool:
        return handle in self.outcomes

    def wait(self, handle: int, timeout_s: float | None = None) -> None:
        self.waited_for.append(handle)
        error = self.outcomes[handle]  # KeyError: the test would hang here
        if error is not None:
            raise error

    def announce(self, handle: int) -> None:
        self.announced.append(handle)

    def next_done(self) -> int | None:
        return self.done.get(timeout=10)


class Tensor:
    """Something whose lifetime can be watched."""


@pytest.fixture
def node() -> ScriptedNode:
    return ScriptedNode()


@pytest.fixture
def in_flight(node: ScriptedNode) -> InFlight:
    return InFlight(node)


def start(in_flight: InFlight, name: str, keepalive: object = None) -> Handle:
    return in_flight.start(name, 0, 0, 4, 0, 0, 0, 0, keepalive, lambda: f"result of {name}")


def test_synchronize_makes_the_result_once_and_returns_it_every_time(node: ScriptedNode) -> None:
    made: list[Tensor] = []
    handle = InFlight(node).start("a", 0, 0, 4, 0, 0, 0, 0, None, lambda: made.append(Tensor()) or made[0])
    assert not handle.poll()
    node.outcomes[0] = None
    for _ in range(2):
        assert handle.poll()
        assert handle.synchronize() is made[0]
    assert node.waited_for == [0] and len(made) == 1


def test_synchronize_raises_what_went_wrong_every_time(in_flight: InFlight, node: ScriptedNode) -> None:
    handle = start(in_flight, "a")
    node.outcomes[0] = PeerLostError("rank 1 is lost")
    for _ in range(2):
        with pytest.raises(PeerLostError, match="rank 1 is lost"):
            handle.synchronize()
        assert handle.poll()
    assert node.waited_for == [0]


def test_a_name_in_flight_is_refused_and_free_again_when_done(in_flight: InFlight, node: ScriptedNode) -> None:
    first = start(in_flight, "a")
    with pytest.raises(InvalidArgumentError, match="'a': a tensor of this name is still in flight"):
        start(in_flight, "a")
    node.outcomes[0] = None
    second = start(in_flight, "a")
    node.outcomes[1] = None
    assert first.synchronize() == second.synchronize() == "result of a"


def test_memory_is_kept_until_done_and_then_let_go(in_flight: InFlight, node: ScriptedNode) -> None:
    tensor = Tensor()
    alive = weakref.ref(tensor)
    start(in_flight, "dropped", keepalive=tensor)
    del tensor
    for number in range(1, FIRST_SWEEP):
        start(in_flight, str(number))
    start(in_flight, "first sweep")
    assert alive() is not None
    node.outcomes = dict.fromkeys(range(len(node.started)))
    for number in range(FIRST_SWEEP):
        start(in_flight, f"again {number}")
    assert alive() is None


def test_a_swept_handle_still_gives_its_result_or_error(in_flight: InFlight, node: ScriptedNode) -> None:
    good, bad = start(in_flight, "good"), start(in_flight, "bad")
    node.outcomes = {0: None, 1: PeerLostError("rank 1 is lost")}
    for number in range(FIRST_SWEEP):
        start(in_flight, str(number))
    assert node.waited_for == [0, 1]
    assert good.synchronize() == "result of good"
    with pytest.raises(PeerLostError, match="rank 1 is lost"):
        bad.synchronize()
    assert node.waited_for == [0, 1]


def test_automatic_names_repeat_and_wait_for_their_turn(in_flight: InFlight, node: ScriptedNode) -> None:
    names = [in_flight.automatic_name() for _ in range(AUTOMATIC_NAMES)]
    assert len(set(names)) == AUTOMATIC_NAMES
    handle = start(in_flight, names[0])
    node.outcomes[0] = None
    assert in_flight.automatic_name() == names[0]
    assert node.waited_for == [0]
    assert handle.synchronize() == f"result of {names[0]}"
    assert in_flight.automatic_name("another") not in names


def test_an_interrupt_leaves_the_handle_in_flight(in_flight: InFlight, node: ScriptedNode) -> None:
    tensor = Tensor()
    alive = weakref.ref(tensor)
    handle = start(in_flight, "a", keepalive=tensor)
    del tensor
    node.outcomes[0] = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        handle.synchronize()
    assert alive() is not None
    node.outcomes[0] = None
    assert handle.synchronize() == "result of a"
    assert alive() is None


def test_a_start_that_fails_leaves_nothing_behind(in_flight: InFlight, node: ScriptedNode) -> None:
    node.push_pull = lambda *_: (_ for _ in ()).throw(PeerLostError("gone"))  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(PeerLostError, match="gone"):
            start(in_flight, "a")


def test_handles_in_flight_at_shutdown_fail(in_flight: InFlight) -> None:
    handle = start(in_flight, "late")
    in_flight.close()
    with pytest.raises(NotInitializedError, match=r"'late' was in flight at byteps.shutdown\(\)"):
        handle.synchronize()


def test_a_failure_keeps_nothing_alive() -> None:
    """A failure must not wait for the garbage collector: a node has threads, sockets and memory."""

    def fail() -> weakref.ref[ScriptedNode]:
        node = ScriptedNode()
        handle = start(InFlight(node), "a")
        node.outcomes[0] = PeerLostError("rank 1 is lost")
        try:
            handle.synchronize()
        except PeerLostError:
            node.outcomes.clear()  # the node's own reference to the error
        return weakref.ref(node)

    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()


def test_callbacks_come_from_other_threads_when_the_handle_is_done(in_flight: InFlight, node: ScriptedNode) -> None:
    calls: queue.Queue[tuple[str, threading.Thread]] = queue.Queue()

    def call(name: str) -> None:
        calls.put((name, threading.current_thread()))

    a, b = start(in_flight, "a"), start(in_flight, "b")
    a.add_done_callback(lambda: call("a"))
    b.add_done_callback(lambda: call("b"))
    b.add_done_callback(lambda: 1 // 0)  # is logged, and stops nobody
    b.add_done_callback(lambda: call("b again"))
    assert node.announced == [0, 1, 1, 1]
    assert calls.empty()
    node.done.put(1)
    node.done.put(0)
    names, threads = zip(*(calls.get(timeout=10) for _ in range(3)), strict=True)
    assert [name for name in names if name != "a"] == ["b", "b again"] and "a" in names
    assert threading.current_thread() not in threads
    node.done.put(None)
    in_flight.close()
    assert not any(thread.is_alive() for thread in threads)


def test_a_callback_may_wait_for_others(in_flight: InFlight, node: ScriptedNode) -> None:
    """However many of them do at a time."""
    count = MAX_IDLE_THREADS + 5
    done = [threading.Event() for _ in range(count + 1)]

    def wait_for_the_next(number: int) -> None:
        assert done[number + 1].wait(20)
        done[number].set()

    for number in range(count):
        start(in_flight, f"n{number}").add_done_callback(lambda number=number: wait_for_the_next(number))
        node.done.put(number)
    start(in_flight, "last").add_done_callback(done[count].set)
    node.done.put(count)
    assert done[0].wait(20)
    node.done.put(None)
    in_flight.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "byteps-callbacks"]


def test_a_callback_of_a_handle_that_is_done_comes_at_once(in_flight: InFlight, node: ScriptedNode) -> None:
    calls: list[str] = []
    handle = start(in_flight, "a")
    node.outcomes[0] = None
    in_flight.wait(handle)
    handle.add_done_callback(lambda: calls.append("waited for"))
    Handle.completed("b", lambda: None).add_done_callback(lambda: calls.append("never sent"))
    assert calls == ["waited for", "never sent"] and node.announced == []


def test_a_callback_of_a_handle_that_is_done_but_not_waited_for_comes_at_once(
    in_flight: InFlight, node: ScriptedNode
) -> None:
    """A job of one rank has no thread that could call it later."""
    calls: list[str] = []
    handle = start(in_flight, "a")
    node.outcomes[0] = None
    handle.add_done_callback(lambda: calls.append("done"))
    assert calls == ["done"] and node.announced == []


def test_a_callback_added_while_another_thread_frees_the_handle(in_flight: InFlight, node: ScriptedNode) -> None:
    calls: list[str] = []
    handle = start(in_flight, "a")
    with mock.patch.object(node, "announce", side_effect=InvalidArgumentError("waited for already")):
        handle.add_done_callback(lambda: calls.append("done"))
    assert calls == ["done"]
    node.done.put(None)
    in_flight.close()
    assert calls == ["done"]


def test_wait_can_be_repeated_and_leaves_the_result_to_synchronize(in_flight: InFlight, node: ScriptedNode) -> None:
    good, bad = start(in_flight, "good"), start(in_flight, "bad")
    node.outcomes = {0: None, 1: PeerLostError("rank 1 is gone")}
    for _ in range(2):
        assert good.wait() is None
        assert isinstance(bad.wait(1.0), PeerLostError)
    assert node.waited_for == [0, 1]
    with pytest.raises(PeerLostError):
        bad.synchronize()


@pytest.mark.parametrize("is_open", [True, False], ids=["the wait's", "the push_pull's"])
def test_whose_timeout_it_is(in_flight: InFlight, node: ScriptedNode, is_open: bool) -> None:
    handle = start(in_flight, "a")
    node.outcomes[0] = TimeoutError("too late")
    gone = InvalidArgumentError("handle 0 is unknown or was waited for already")
    with mock.patch.object(node, "poll", side_effect=[False] if is_open else gone):
        if is_open:
            with pytest.raises(TimeoutError):
                handle.wait(0.1)
        else:
            assert isinstance(handle.wait(0.1), TimeoutError)
    node.outcomes[0] = None
    assert (handle.wait() is None) == is_open


def test_a_handle_freed_by_another_thread_is_done(in_flight: InFlight, node: ScriptedNode) -> None:
    handle = start(in_flight, "a")
    with mock.patch.object(node, "poll", side_effect=InvalidArgumentError("waited for already")):
        assert handle.poll()


def test_callbacks_that_were_not_called_are_at_shutdown(in_flight: InFlight, node: ScriptedNode) -> None:
    calls: list[str] = []
    start(in_flight, "a").add_done_callback(lambda: calls.append("a"))
    node.done.put(None)
    in_flight.close()
    assert calls == ["a"]


def test_shutdown_while_a_thread_waits(in_flight: InFlight, node: ScriptedNode) -> None:
    handle, raised = start(in_flight, "a"), []
    entered, shut_down = threading.Event(), threading.Event()

    def wait_until_shutdown(number: int, timeout_s: float | None = None) -> None:
        entered.set()
        assert shut_down.wait(10)
        raise NotInitializedError("byteps was shut down")

    def wait() -> None:
        raised.append(handle.wait())

    with mock.patch.object(node, "wait", wait_until_shutdown):
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert entered.wait(10)
        closer = threading.Thread(target=in_flight.close)
        closer.start()
        shut_down.set()
        for thread in (waiter, closer):
            thread.join(10)
            assert not thread.is_alive()
    assert [str(error) for error in raised] == ["byteps was shut down"]
    calls: list[str] = []
    handle.add_done_callback(lambda: calls.append("late"))
    assert calls == ["late"]


def test_a_wait_beside_another_has_its_own_timeout(in_flight: InFlight, node: ScriptedNode) -> None:
    handle = start(in_flight, "a")
    entered, release = threading.Event(), threading.Event()

    def slow_wait(number: int, timeout_s: float | None = None) -> None:
        entered.set()
        assert release.wait(10)

    with mock.patch.object(node, "wait", slow_wait):
        waiter = threading.Thread(target=handle.wait)
        waiter.start()
        assert entered.wait(10)
        with pytest.raises(TimeoutError, match="'a' is not done"):
            handle.wait(0.01)
        release.set()
        waiter.join(10)
    assert handle.wait(0.01) is None


def test_two_threads_may_settle_one_handle(in_flight: InFlight, node: ScriptedNode) -> None:
    entered, release = threading.Event(), threading.Event()

    def slow_wait(handle: int, timeout_s: float | None = None) -> None:
        node.waited_for.append(handle)
        entered.set()
        release.wait(10)

    node.wait = slow_wait  # type: ignore[method-assign]
    node.outcomes[0] = None
    handle = start(in_flight, "a")
    thread = threading.Thread(target=handle.synchronize)
    thread.start()
    entered.wait(10)
    for number in range(FIRST_SWEEP):  # sweeps past the handle that the thread waits for
        start(in_flight, str(number))
    release.set()
    thread.join(10)
    assert node.waited_for == [0]
