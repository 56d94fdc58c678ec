"""Handles in flight, over a node whose completions the test decides."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

pytest.importorskip("byteps._core")

from byteps.errors import InvalidArgumentError, NotInitializedError, PeerLostError
from byteps.handles import AUTOMATIC_NAMES, FIRST_SWEEP, Handle, InFlight
from byteps.nodes import LocalNode


class ScriptedNode(LocalNode):
    """Push_pulls are done when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []
        self.outcomes: dict[int, Exception | None] = {}
        self.waited_for: list[int] = []

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


def test_synchronize_returns_the_result_once(in_flight: InFlight, node: ScriptedNode) -> None:
    handle = start(in_flight, "a")
    assert not handle.poll()
    node.outcomes[0] = None
    assert handle.poll()
    assert handle.synchronize() == "result of a"
    for use in (handle.poll, handle.synchronize):
        with pytest.raises(InvalidArgumentError, match="'a' was synchronized before"):
            use()
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
    names = [in_flight.automatic_name("float32.4.0") for _ in range(AUTOMATIC_NAMES)]
    assert len(set(names)) == AUTOMATIC_NAMES
    handle = start(in_flight, names[0])
    node.outcomes[0] = None
    assert in_flight.automatic_name("float32.4.0") == names[0]
    assert node.waited_for == [0]
    assert handle.synchronize() == f"result of {names[0]}"
    assert in_flight.automatic_name("float64.8.0") not in names


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
    """Not even until the garbage is collected: a node has threads, sockets and memory."""

    def fail() -> weakref.ref[ScriptedNode]:
        node = ScriptedNode()
        handle = start(InFlight(node), "a")
        node.outcomes[0] = PeerLostError("rank 1 is lost")
        try:
            handle.synchronize()
        except PeerLostError:
            node.outcomes.clear()  # this node's own reference to the error
        return weakref.ref(node)

    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()


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
