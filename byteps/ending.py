"""What ends this process by an exception: noted when it happens, for the other ranks and for bpslaunch.

An exception that nobody catches comes by `sys.excepthook`, and `sys.exit(1)` by `sys.exit`; at exit Python tells no
more about either. Both do what they did before, and the note comes in between. Of `raise SystemExit(1)` Python tells
nobody: there the launcher knows the code, and the other ranks that this one has left.
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
    """The end of this process, as far as it is known."""

    def __init__(
        self, on_uncaught: Callable[[], object], failure: Callable[[], str], progress: Callable[[], float]
    ) -> None:
        """Nothing is watched yet.

        Args:
            on_uncaught: called when an exception ends the main thread, after it was printed.
            failure: why the job of this process has failed; "": it has not.
            progress: a number that changes whenever the program communicates.
        """
        self.cause = ""  # "KeyError: 'label'"
        self.error_file = ""  # where to report it to
        self._at = 0.0  # by time.time()
        self._because_of = ""  # another's failure
        self._on_uncaught = on_uncaught
        self._failure = failure
        self._progress = progress
        self._progress_at_exit: float | None = None  # at the call of sys.exit that is the cause
        self._pid = 0
        self._excepthook = sys.excepthook

    def watch(self) -> None:
        """From now on, in this process and not in those that it forks. Once is enough."""
        if self._pid == 0:
            self._excepthook, sys.excepthook = sys.excepthook, self._hook
            sys.exit = self._noted_exit
        self._pid = os.getpid()

    def at_exit(self) -> str:
        """The cause; "": the program is through."""
        if self._pid != os.getpid():
            return ""
        if self._progress_at_exit not in (None, self._progress()):  # somebody caught it, and the program went on
            self.cause = ""
        error = getattr(sys, "last_value", None)
        if not self.cause and error is not None and sys.excepthook != self._hook:  # replaced by one that is not ours
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
        last_words = _describe_exit(end)
        if last_words and self._is_main_thread():
            error = sys.exc_info()[1]
            self._note(last_words if error is None else f"{describe(error)}, then {last_words}", error)
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
    """In one line, as at the end of a traceback."""
    try:
        text = str(error)
    except Exception:
        text = "(it cannot say why)"
    name = type(error).__name__
    return f"{name}: {_shortened(' '.join(text.split()))}" if text else name


def on_its_way() -> str:
    """The exception that this thread handles, in an `except` or a `finally`; "": none, or one that is no failure.

    Whether it ends the program, nobody knows then.
    """
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return _describe_exit(error)
    if error is None or isinstance(error, GeneratorExit | StopIteration | StopAsyncIteration):
        return ""
    return describe(error)


def report(path: str, at: float, cause: str, because_of: str) -> None:
    """Writes for bpslaunch why this process ends, unless that is written already.

    Args:
        path: BYTEPS_ERROR_FILE; empty: nobody wants to know.
        at: by time.time().
        cause: "KeyError: 'label'".
        because_of: the failure of another process that it ends by; "": none.
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
    """As at a call of sys.exit; "": with success."""
    is_success = end.code is None or (isinstance(end.code, int) and end.code == 0)
    return "" if is_success else f"sys.exit({_shortened(repr(end.code))})"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "..."
