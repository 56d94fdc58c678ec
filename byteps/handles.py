"""Push_pulls in flight: who owns their memory, and what became of them."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from byteps.errors import BytePSError, InvalidArgumentError, NotInitializedError, TimeoutError
from byteps.speed import SpeedMeter

__all__ = ["Handle", "InFlight", "Node"]

log = logging.getLogger("byteps")

# Automatic names repeat after so many, so that a program that never names its tensors does not declare new ones
# forever. It bounds how many unnamed tensors can be in flight.
AUTOMATIC_NAMES = 256
FIRST_SWEEP = 256
SPARE_THREADS = 3  # for callbacks, beside those that are in one


class Node(Protocol):
    """What this package needs of `byteps._core.Node`, which documents it."""

    def declare(self, name: str, dtype: int, nbytes: int) -> None: ...
    def push_pull(
        self,
        name: str,
        input_ptr: int,
        output_ptr: int,
        nbytes: int,
        dtype: int,
        op: int,
        root: int,
        priority: int,
        staleness: int,
        shape: Sequence[int] | None,
        order: Sequence[int],
        collective: int,
        step: int,
    ) -> int: ...
    def refuse(self, name: str, why: str, step: int) -> None: ...
    def poll(self, handle: int) -> bool: ...
    def wait(self, handle: int, timeout_s: float | None = None) -> None: ...
    def announce(self, handle: int) -> None: ...
    def next_done(self) -> int | None: ...
    def barrier(self) -> None: ...
    def failure(self) -> str: ...
    def metrics(self) -> dict[str, float]: ...
    def offer_to_c(self) -> None: ...
    def shutdown(self, cause: str = "", after: str = "") -> None: ...


class Handle:
    """One push_pull: pass it to `poll` and `synchronize`.

    Dropping it is safe: the job keeps the tensors alive for as long as the core uses their memory.
    """

    __slots__ = ("_error", "_finish", "_in_flight", "_keepalive", "_lock", "_number", "_result", "name")

    def __init__(self, in_flight: InFlight | None, name: str, keepalive: object, finish: Callable[[], object]) -> None:
        self.name = name
        self._lock = threading.Lock()  # held by the thread that waits, so that no other frees the core's handle
        self._in_flight = in_flight  # None: the core is done with the memory
        self._number = -1
        self._keepalive = keepalive
        self._finish: Callable[[], object] | None = finish
        self._result: object = None  # of `finish`, which is called once
        self._error: BytePSError | None = None

    @classmethod
    def completed(cls, name: str, finish: Callable[[], object]) -> Handle:
        """A handle of something that needed no communication."""
        return cls(None, name, None, finish)

    def __repr__(self) -> str:
        state = "synchronized" if self._finish is None else "done" if self._in_flight is None else "in flight"
        return f"<byteps handle of '{self.name}', {state}>"

    def poll(self) -> bool:
        """True if `synchronize` would not wait."""
        in_flight = self._in_flight
        return in_flight is None or in_flight.is_done(self)

    def synchronize(self) -> object:
        """Waits until the push_pull is done; returns its result or raises what went wrong, each time the same.

        The result is made by the first call, and is kept as long as the handle.
        """
        in_flight = self._in_flight
        if in_flight is not None:
            in_flight.wait(self)
        with self._lock:
            if self._error is not None:
                self._finish = None
                # What is raised refers to frames, and no cycle may keep tensors and the node alive.
                raise copy.copy(self._error)
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None
            return self._result

    def wait(self, timeout_s: float | None = None) -> BytePSError | None:
        """Waits until the push_pull is done; returns what went wrong, or None. As often as one likes.

        `synchronize` remains to be called where the result matters.

        Raises:
            TimeoutError: it is not done after `timeout_s`, and stays in flight.
        """
        in_flight = self._in_flight
        if in_flight is not None:
            in_flight.wait(self, timeout_s)
        return self._error

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Has `callback` called once the push_pull is done, well or not, when `synchronize` would not wait.

        From a thread of the job, or at once, here, if it is done already. Callbacks of several handles begin in the
        order of completion, on several threads: one may wait for another. An exception that it raises is printed. It
        must not leave the job: whoever does waits for this thread.
        """
        in_flight = self._in_flight
        if in_flight is None or not in_flight.announce(self, callback):
            callback()


class Callbacks:
    """Calls back when handles of a node are done, from threads of its own, of which the first starts with the first.

    One of them always listens, so that a callback may wait for what another one does.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Callable[[], object]]] = {}
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # threads that listen, or wait to do so
        self._listens = threading.Lock()  # held by the one that does
        self._ended = threading.Event()  # the node will tell of nothing more
        self._closed = False

    def add(self, number: int, callback: Callable[[], object]) -> bool:
        """Has `callback` called when the node's handle `number` is done. False: it is already, or never will be."""
        with self._lock:
            if self._closed:
                return False
            if not self._threads:
                self._start_thread()
            self._waiting.setdefault(number, []).append(callback)
        try:
            self._node.announce(number)
        except InvalidArgumentError:
            return self._take_back(number, callback)
        return True

    def _take_back(self, number: int, callback: Callable[[], object]) -> bool:
        """True: it is or was called all the same, because the handle had been announced before."""
        with self._lock:
            waiting = self._waiting.get(number, [])
            if callback not in waiting:
                return True
            waiting.remove(callback)
            if not waiting:
                del self._waiting[number]
        return False

    def close(self) -> None:
        """After the node's shutdown, which ends the threads: calls what is left."""
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        if threads:
            self._ended.wait()
        with self._lock:
            self._closed = True
        for number in list(self._waiting):  # a thread may be in a callback that waits for one of them
            self._call(number)
        for thread in threads:
            thread.join()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="byteps-callbacks", daemon=True)
        self._threads.add(thread)
        self._idle += 1
        thread.start()

    def _run(self) -> None:
        while True:
            with self._listens:
                number = None if self._ended.is_set() else self._node.next_done()
                if number is None:
                    self._ended.set()
                    return
            with self._lock:
                self._idle -= 1
                if self._idle == 0 and not self._closed:
                    self._start_thread()
            self._call(number)
            with self._lock:
                if self._idle >= SPARE_THREADS:
                    self._threads.discard(threading.current_thread())
                    return
                self._idle += 1

    def _call(self, number: int) -> None:
        with self._lock:
            callbacks = self._waiting.pop(number, [])
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a callback of a push_pull failed")


class InFlight:
    """The push_pulls of one node that are under way, by name. A name is in flight at most once."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.speed = _speed_meter(node)
        self._handles: dict[str, Handle] = {}
        self._next_sweep = FIRST_SWEEP
        self._automatic: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()
        self._callbacks = Callbacks(node)

    def announce(self, handle: Handle, callback: Callable[[], object]) -> bool:
        """See `Handle.add_done_callback`. False: it is done already, and `callback` is the caller's to call."""
        # Without the handle's lock, which a thread in `wait` holds until the end.
        self._settle_if_done(handle)
        return handle._in_flight is not None and self._callbacks.add(handle._number, callback)

    def next_number(self, family: str) -> int:
        """Counts, from 1, what its callers do in the same order on all ranks; modulo 2**32."""
        self._numbers[family] = self._numbers[family] % 2**32 + 1
        return self._numbers[family]

    def automatic_name(self, family: str = "byteps.unnamed") -> str:
        """The next of a bounded cycle of names of that family.

        It says nothing of the tensor, so that the n-th ones of all ranks meet, whatever they are. The same on all ranks
        if they ask in the same order, which is up to the program. Waits if that name is still in
        flight, which ends because every other rank starts the same push_pull too.
        """
        number = self._automatic[family]
        self._automatic[family] = (number + 1) % AUTOMATIC_NAMES
        name = f"{family}.{number}"
        busy = self._handles.get(name)
        if busy is not None:
            self.wait(busy)
        return name

    def start(
        self,
        name: str,
        input_ptr: int,
        output_ptr: int,
        nbytes: int,
        dtype: int,
        op: int,
        root: int,
        priority: int,
        keepalive: object,
        finish: Callable[[], object],
        staleness: int = 0,
        shape: Sequence[int] | None = None,
        order: Sequence[int] = (),
        collective: int = -1,
        step: int = 0,
    ) -> Handle:
        """Hands one push_pull to the node; see `byteps._core.Node.push_pull`.

        `keepalive` owns the memory, and is let go when the node is done with it. `finish` makes the result of
        `Handle.synchronize`, in the thread that calls that.
        """
        busy = self._handles.get(name)
        if busy is not None:
            self._settle_if_done(busy)
        if len(self._handles) >= self._next_sweep:
            self._sweep()
        handle = Handle(self, name, keepalive, finish)
        # Before the core learns of the memory, so that nothing can free it in between.
        if self._handles.setdefault(name, handle) is not handle:
            raise InvalidArgumentError(
                f"push_pull of '{name}': a tensor of this name is still in flight; synchronize its handle first, or "
                "give every tensor of a step its own name"
            )
        try:
            handle._number = self.node.push_pull(
                name,
                input_ptr,
                output_ptr,
                nbytes,
                dtype,
                op,
                root,
                priority,
                staleness,
                shape,
                order,
                collective,
                step,
            )
        except Exception as error:
            self._let_go(handle)
            if isinstance(error, BytePSError):
                error.counted = True
            raise
        return handle

    def refuse(self, name: str, error: Exception, step: int = 0) -> None:
        """Counts a push_pull of that name that has failed here, so that it does on all ranks; unless it is counted."""
        if getattr(error, "counted", False):
            return
        self.node.refuse(name, f"{type(error).__name__}: {error}", step)
        error.counted = True  # type: ignore[attr-defined]

    def is_done(self, handle: Handle) -> bool:
        """Whether `wait` would return at once."""
        try:
            return self.node.poll(handle._number)
        except InvalidArgumentError:
            return True  # another thread has just waited for it

    def wait(self, handle: Handle, timeout_s: float | None = None) -> None:
        """Blocks until the node is done with the handle's memory, well or not; an error is kept in the handle.

        An interrupt (Ctrl-C) or a timeout leaves the handle in flight, because the node still uses its memory.
        """
        if timeout_s is None:
            with handle._lock:
                self._settle(handle)
            return
        deadline_s = time.monotonic() + timeout_s
        if not handle._lock.acquire(timeout=max(timeout_s, 0)):  # another thread waits
            raise TimeoutError(f"push_pull of '{handle.name}' is not done after {timeout_s} s")
        try:
            self._settle(handle, max(deadline_s - time.monotonic(), 0))
        finally:
            handle._lock.release()

    def disown(self, node: Node) -> None:
        """In a forked child: `node` refuses everything, and threads that held the locks of handles are not here."""
        self.node = node
        self.speed = _speed_meter(node)
        for handle in self._handles.values():
            handle._lock = threading.Lock()
        self._callbacks = Callbacks(node)

    def close(self) -> None:
        """After the node's shutdown: nothing is in flight any more, and nobody will hear of it."""
        for handle in list(self._handles.values()):
            with handle._lock:  # a thread that waits is about to hear of the shutdown by itself
                if handle._in_flight is None:
                    continue
                handle._error = NotInitializedError(
                    f"push_pull of '{handle.name}' was in flight at byteps.shutdown(): synchronize handles before it"
                )
                self._let_go(handle)
        self._callbacks.close()

    def _settle(self, handle: Handle, timeout_s: float | None = None) -> None:
        if handle._in_flight is None:
            return
        try:
            self.node.wait(handle._number, timeout_s)
        except BytePSError as error:
            if isinstance(error, TimeoutError) and timeout_s is not None and self._is_open(handle._number):
                raise  # of the wait, not of the push_pull
            handle._error = error.with_traceback(None)  # whose frames refer to the handle
            error.counted = True
        self._let_go(handle)
        self.speed.tick()

    def _is_open(self, number: int) -> bool:
        """Whether the node still has the handle: a wait that ended with the push_pull's own error freed it."""
        try:
            self.node.poll(number)
        except InvalidArgumentError:
            return False
        return True

    def _settle_if_done(self, handle: Handle) -> None:
        if handle._lock.acquire(blocking=False):
            try:
                started = handle._in_flight is not None and handle._number >= 0
                if started and self.node.poll(handle._number):
                    self._settle(handle)
            finally:
                handle._lock.release()

    def _sweep(self) -> None:
        """Lets go of the memory of handles that are done and that nobody may ever synchronize."""
        for handle in list(self._handles.values()):
            self._settle_if_done(handle)
        self._next_sweep = max(FIRST_SWEEP, 2 * len(self._handles))

    def _let_go(self, handle: Handle) -> None:
        del self._handles[handle.name]
        handle._keepalive = None
        handle._in_flight = None


def _speed_meter(node: Node) -> SpeedMeter:
    return SpeedMeter(lambda: node.metrics()["push_pull_bytes"])
