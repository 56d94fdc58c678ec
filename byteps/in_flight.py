"""push_pulls in flight: their memory, results and errors."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from byteps import _core
from byteps.buffer import DTYPE_BYTES, DTYPE_CODES, Buffer
from byteps.call_names import UNNAMED, CallNames
from byteps.callbacks import Callbacks
from byteps.device import Device, Transfer
from byteps.errors import BytePSError, InvalidArgumentError, NotInitializedError, TimeoutError
from byteps.handles import Handle, Prepared, no_result
from byteps.speed import SpeedMeter

if TYPE_CHECKING:
    from byteps.nodes import Node

__all__ = ["InFlight"]

FIRST_SWEEP = 256


class InFlight:
    """The push_pulls of one node that are in flight, at most one for each name."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.speed = _speed_meter(node)
        self._handles: dict[str, Handle] = {}
        self._next_sweep = FIRST_SWEEP
        self.names = CallNames()
        self._callbacks = Callbacks(node)
        # Push_pulls that are done, and whose copies to a device may still use the tensors.
        self._copies_back: deque[tuple[Transfer, object]] = deque()

    def in_new_epoch(self) -> InFlight:
        """Returns the push_pulls of the same node, of which none is in flight, with names from the start."""
        new = InFlight.__new__(InFlight)
        new.__dict__.update(self.__dict__)
        new.names = CallNames()
        return new

    def announce(self, handle: Handle, callback: Callable[[], object]) -> bool:
        """See `Handle.add_done_callback`.

        False: the handle is done, and the caller calls `callback`.
        """
        # Does not take the handle's lock, which a thread in `wait` holds until the end.
        self._complete_if_done(handle)
        return handle._in_flight is not None and self._callbacks.add(handle._number, callback)

    def automatic_name(self, family: str = UNNAMED) -> str:
        """See `CallNames.next_name`. Waits if the name is still in flight."""
        name = self.names.next_name(family)
        busy = self._handles.get(name)
        if busy is not None:
            self.wait(busy)
        return name

    def blocking_calls(
        self,
        family: str,
        reader: _core.TensorReader,
        operators: list[tuple[object, int]],
        limit_s: float,
        numbers: Iterator[int],
        go_on: Callable[[Handle, int], object],
    ) -> _core.BlockingCalls | None:
        """Returns an object for collectives, whose names are of this family; see `BlockingCalls`.

        None: this node has no other ranks.
        """
        if not isinstance(self.node, _core.Node):
            return None
        names = self.names
        return _core.BlockingCalls(
            names.family(family), reader, operators, limit_s, self, self._handles, self._keep, names.on_release_of,
            numbers, go_on,
        )  # fmt: skip

    def handle_of(self, name: str) -> Handle | None:
        """Returns the handle of the push_pull of that name that is in flight, if any."""
        return self._handles.get(name)

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
        transfer: Transfer | None = None,
    ) -> Handle:
        """Starts a push_pull; see `byteps._core.Node.push_pull`.

        `keepalive` owns the memory, and is released when the node does not use it any more.
        `finish` makes the result of `Handle.synchronize`, in the thread that calls it.
        """
        handle = Handle(self, name, keepalive, finish, transfer)
        self._register(handle)
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
                None if transfer is None else transfer.core,
            )
        except Exception as error:
            self._abandon(handle, error)
            raise
        return handle

    def prepare(self, name: str, nbytes: int, dtype: int, op: int, shape: Sequence[int]) -> Prepared | None:
        """Prepares `start_prepared`. None: this node has no other ranks."""
        if not isinstance(self.node, _core.JobNode):
            return None
        return Prepared(self.node, name, _core.PreparedPushPull(self.node, name, nbytes, dtype, op, shape))

    def start_prepared(
        self, prepared: Prepared, memory: int, priority: int, step: int, keepalive: object, device: Device | None
    ) -> None:
        """Starts a push_pull as `start` does.

        `prepared.node` must be this node: it is another one after a fork, and in another job.
        `device`: whose memory it is; None: the host's.
        """
        self._register(prepared)
        prepared._begin(self, keepalive)
        try:
            if device is None:
                prepared._number = prepared.core.start(memory, priority, step)
            else:
                number, transfer = prepared.core.start_on_device(
                    memory, priority, step, device.index, device.current_stream()
                )
                prepared._transfer = Transfer(device, transfer)
                prepared._number = number  # last, as other threads complete handles that have one
        except Exception as error:
            self._abandon(prepared, error)
            raise

    def push_pull_and_wait(
        self,
        name: str,
        memory: Buffer,
        op: int,
        root: int,
        priority: int = 0,
        collective: int = -1,
        timeout_s: float | None = None,
    ) -> Handle | None:
        """A push_pull of row-major host memory in place: `start` and `Handle.wait` in one call.

        After an interrupt (Ctrl-C) the push_pull stays in flight.

        Returns:
            None: it is done. A handle: it is not done after `timeout_s`, and stays in flight.

        Raises:
            BytePSError: the push_pull has failed, or a tensor of this name is in flight.
        """
        busy = self._handles.get(name)
        if busy is not None:
            self._complete_if_done(busy)
            if name in self._handles:
                raise _still_in_flight(name)
        ptr, nbytes, dtype, owner, shape, _, _ = memory
        if shape is None:
            shape = (nbytes // DTYPE_BYTES[dtype],)
        code = DTYPE_CODES[dtype]
        try:
            kept = self.node.push_pull_and_wait(
                name, owner, ptr, nbytes, code, op, root, priority, shape, collective, timeout_s, self._keep
            )
        except Exception as error:
            if isinstance(error, BytePSError) or name in self._handles:  # a signal's handler has raised
                error.counted = True  # type: ignore[attr-defined]
            raise
        self.speed.tick()
        return cast("Handle | None", kept)

    def refuse(self, name: str, error: Exception, step: int = 0) -> None:
        """Makes a call that has failed on this rank fail on all ranks, unless it is counted."""
        if getattr(error, "counted", False):
            return
        self.node.refuse(name, f"{type(error).__name__}: {error}", step)
        error.counted = True  # type: ignore[attr-defined]

    def is_done(self, handle: Handle) -> bool:
        """Whether `wait` would return at once."""
        try:
            return self.node.poll(handle._number)
        except InvalidArgumentError:
            return True  # another thread has completed it

    def wait(self, handle: Handle, timeout_s: float | None = None) -> None:
        """Blocks until the node has released the handle's memory. Stores an error in the handle.

        After an interrupt (Ctrl-C) or a timeout the handle stays in flight, since the node still
        uses its memory.
        """
        if timeout_s is None:
            with handle._lock:
                self._complete(handle)
            return
        left_s = max(timeout_s, 0)
        if not handle._lock.acquire(blocking=False):  # another thread waits
            deadline_s = time.monotonic() + left_s
            if not handle._lock.acquire(timeout=left_s):
                raise TimeoutError(f"push_pull of '{handle.name}' is not done after {timeout_s} s")
            left_s = max(deadline_s - time.monotonic(), 0)
        try:
            self._complete(handle, left_s)
        finally:
            handle._lock.release()

    def disown(self, node: Node) -> None:
        """Prepares for use in a forked child.

        `node` raises errors; locks of handles are replaced.
        """
        self.node = node
        self.speed = _speed_meter(node)
        for handle in self._handles.values():
            handle._lock = threading.Lock()
        self._callbacks = Callbacks(node)

    def close(self) -> None:
        """Fails all handles that are in flight. Call it after the node's shutdown."""
        for handle in list(self._handles.values()):
            with handle._lock:  # a waiting thread gets the node's own error first
                if handle._in_flight is None:
                    continue
                handle._error = NotInitializedError(
                    f"push_pull of '{handle.name}' was in flight at byteps.shutdown(): synchronize handles before it"
                )
                self._release(handle)
        self._callbacks.close()

    def _register(self, handle: Handle) -> None:
        """Comes before the core uses the memory, so that nothing frees it in between."""
        name = handle.name
        busy = self._handles.get(name)
        if busy is not None:
            self._complete_if_done(busy)
            if name in self._handles:
                raise _still_in_flight(name)
        if len(self._handles) >= self._next_sweep:
            self._sweep()
        if self._handles.setdefault(name, handle) is not handle:  # another thread was faster
            raise _still_in_flight(name)

    def _abandon(self, handle: Handle, error: Exception) -> None:
        """The core has refused to start it."""
        self._release(handle)
        if isinstance(error, BytePSError):
            error.counted = True

    def _complete(self, handle: Handle, timeout_s: float | None = None) -> None:
        if handle._in_flight is None:
            return
        try:
            self.node.wait(handle._number, timeout_s)
        except BytePSError as error:
            if isinstance(error, TimeoutError) and timeout_s is not None and self._is_open(handle._number):
                raise  # the wait timed out, not the push_pull
            handle._error = error.with_traceback(None)  # frames refer to the handle
            error.counted = True
        self._release(handle)
        self.speed.tick()

    def _keep(self, name: str, owner: object, number: int) -> Handle:
        """Returns a new handle of a push_pull in flight that a thread has stopped waiting for."""
        handle = self._handles[name] = Handle(self, name, owner, no_result)
        handle._number = number
        return handle

    def _is_open(self, number: int) -> bool:
        """Whether the node still has the handle, which is freed when the push_pull has ended."""
        try:
            self.node.poll(number)
        except InvalidArgumentError:
            return False
        return True

    def _complete_if_done(self, handle: Handle) -> None:
        if handle._lock.acquire(blocking=False):
            try:
                started = handle._in_flight is not None and handle._number >= 0
                if started and self.node.poll(handle._number):
                    self._complete(handle)
            finally:
                handle._lock.release()

    def _sweep(self) -> None:
        """Releases the memory of handles that are done, since they may never be synchronized."""
        for handle in list(self._handles.values()):
            self._complete_if_done(handle)
        self._next_sweep = max(FIRST_SWEEP, 2 * len(self._handles))

    def _release(self, handle: Handle) -> None:
        if self._handles.get(handle.name) is handle:
            del self._handles[handle.name]
        if handle._transfer is not None:
            self._copies_back.append((handle._transfer, handle._keepalive))
        while self._copies_back and self._copies_back[0][0].is_complete():
            self._copies_back.popleft()
        handle._keepalive = None
        handle._in_flight = None


def _still_in_flight(name: str) -> BytePSError:
    return InvalidArgumentError(
        f"push_pull of '{name}': a tensor of this name is still in flight; synchronize its handle first, or give every "
        "tensor of a step its own name"
    )


def _speed_meter(node: Node) -> SpeedMeter:
    return SpeedMeter(lambda: node.metrics()["push_pull_bytes"])
