"""Callbacks of push_pulls that are done."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from byteps.errors import InvalidArgumentError

__all__ = ["Callbacks"]

log = logging.getLogger("byteps")

MAX_IDLE_THREADS = 3  # maximum number of threads that wait for callbacks


class Announcer(Protocol):
    """The methods of `byteps._core.Node` that this file uses, documented there."""

    def announce(self, handle: int) -> None: ...
    def next_done(self) -> int | None: ...


class Callbacks:
    """Calls callbacks of handles on its own threads, which it starts as needed.

    One thread always listens, so that callbacks may wait for each other.
    """

    def __init__(self, node: Announcer) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Callable[[], object]]] = {}
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # number of threads that listen, or wait to listen
        self._listens = threading.Lock()  # held by the thread that listens
        self._ended = threading.Event()  # the node will report no more handles
        self._closed = False

    def add(self, number: int, callback: Callable[[], object]) -> bool:
        """Has `callback` called when handle `number` of the node is done.

        Returns False if the handle is done already, or if there will be no more callbacks.
        """
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
        """Removes a callback. Returns True if it was or will be called nevertheless."""
        with self._lock:
            waiting = self._waiting.get(number, [])
            if callback not in waiting:
                return True
            waiting.remove(callback)
            if not waiting:
                del self._waiting[number]
        return False

    def close(self) -> None:
        """Ends the threads and calls the remaining callbacks. Call it after the node's shutdown."""
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        if threads:
            self._ended.wait()
        with self._lock:
            self._closed = True
        for number in list(self._waiting):  # a running callback may wait for one of them
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
                if self._idle >= MAX_IDLE_THREADS:
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
                log.exception("a callback of a push_pull has failed")
