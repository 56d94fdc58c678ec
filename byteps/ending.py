"""Records the exception that ends this process, for the other ranks and for bpslaunch.

`sys.excepthook` and `sys.exit` are wrapped, since Python does not report the cause at exit. A
`raise SystemExit(1)` calls neither: the launcher then knows the exit code, and the other ranks
learn only that this rank has left.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from byteps.errors import AbortedError, PeerLostError

__all__ = ["Ending", "describe", "on_its_way", "report"]

_MAX_CHARACTERS = 1000


class Ending:
    """The cause of the end of this process."""

    def __init__(
        self, on_uncaught: Callable[[], object], failure: Callable[[], str], progress: Callable[[], float]
    ) -> None:
        """Does not watch yet; see `watch`.

        Args:
            on_uncaught: called when an exception has ended the main thread and was printed.
            failure: returns why the job of this process has failed; "": it has not.
            progress: returns a number that changes whenever the program communicates.
        """
        self.cause = ""  # "KeyError: 'label'"
        self.error_file = ""  # file for the report; "": none
        self._at = 0.0  # time of the cause, by time.time()
        self._because_of = ""  # failure of another process that led to the cause
        self._on_uncaught = on_uncaught
        self._failure = failure
        self._progress = progress
        self._progress_at_exit: float | None = None  # at the call of sys.exit
        self._pid = 0
        self._excepthook = sys.excepthook

    def watch(self) -> None:
        """Starts watching this process, but not its forked children. Repeated calls do nothing."""
        if self._pid == 0:
            self._excepthook, sys.excepthook = sys.excepthook, self._hook
            sys.exit = self._noted_exit
        self._pid = os.getpid()

    def at_exit(self) -> str:
        """Returns the cause, or "" if the program has ended well. Writes the report."""
        if self._pid != os.getpid():
            return ""
        if self._progress_at_exit not in (None, self._progress()):  # SystemExit was caught
            self.cause = ""
        error = getattr(sys, "last_value", None)
        if not self.cause and error is not None and sys.excepthook != self._hook:  # replaced
            self._note(describe(error), error)
        self._report()
        return self.cause

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            self._excepthook(kind, error, trace)
        finally:
            interactive = hasattr(sys, "ps1") or sys.flags.interactive
            if not interactive and self._is_main_thread():
                self._note(describe(error), error)
                self._report()
                self._on_uncaught()

    def _noted_exit(self, status: object = None, /) -> NoReturn:
        end = SystemExit(status)
        description = _describe_exit(end)
        if description and self._is_main_thread():
            error = sys.exc_info()[1]
            self._note(description if error is None else f"{describe(error)}, then {description}", error)
            self._progress_at_exit = self._progress()
        raise end

    def _is_main_thread(self) -> bool:
        return self._pid == os.getpid() and threading.current_thread() is threading.main_thread()

    def _note(self, cause: str, error: BaseException | None) -> None:
        if not self.cause:
            self.cause = cause
            self._at = time.time()
            self._because_of = self._failure() or _others_failure(error)

    def _report(self) -> None:
        if self.cause and self.error_file:
            report(self.error_file, self._at, self.cause, self._because_of)


def describe(error: BaseException) -> str:
    """Returns the exception in one line, as at the end of a traceback."""
    try:
        text = str(error)
    except Exception:
        text = "(no message: its __str__ fails)"
    name = type(error).__name__
    return f"{name}: {_shortened(' '.join(text.split()))}" if text else name


def on_its_way() -> str:
    """Describes the exception that this thread is handling in an `except` or a `finally`.

    Returns "" if there is none, or one that is no failure. The exception may or may not end the
    program.
    """
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return _describe_exit(error)
    if error is None or isinstance(error, GeneratorExit | StopIteration | StopAsyncIteration):
        return ""
    return describe(error)


def report(path: str, at: float, cause: str, because_of: str) -> None:
    """Writes the cause of this process's end to a file for bpslaunch, unless the file exists.

    Args:
        path: BYTEPS_ERROR_FILE; empty: write nothing.
        at: time of the cause, by time.time().
        cause: such as "KeyError: 'label'".
        because_of: failure of another process that led to the cause; "": none.
    """
    if not path:
        return
    new = Path(f"{path}.{os.getpid()}")
    with suppress(OSError):
        new.write_text(json.dumps({"at": at, "cause": cause, "because_of": because_of}))
        os.link(new, path)
    with suppress(OSError):
        new.unlink()


def _others_failure(error: BaseException | None) -> str:
    return next((str(e) for e in _chain(error) if isinstance(e, PeerLostError | AbortedError)), "")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _describe_exit(end: SystemExit) -> str:
    """Returns the end as a call of sys.exit; "" for success."""
    is_success = end.code is None or (isinstance(end.code, int) and end.code == 0)
    return "" if is_success else f"sys.exit({_shortened(repr(end.code))})"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "..."
