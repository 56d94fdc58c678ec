"""Makes signals available to a selector."""

from __future__ import annotations

import signal
import socket
from types import TracebackType

_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalWakeup:
    """A context in which the signals above only make `fileno` readable. For the main thread only.

    SIGHUP stays ignored if it is ignored at the start, as under nohup.
    """

    def __enter__(self) -> SignalWakeup:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        is_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        taken = [number for number in _SIGNALS if number != signal.SIGHUP or not is_nohup]
        self._old_handlers = {number: signal.signal(number, lambda _number, _frame: None) for number in taken}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        return self._reader.fileno()

    def read(self) -> list[signal.Signals]:
        """Returns the received signals, oldest first. Several SIGCHLD may be merged into one."""
        try:
            return [signal.Signals(number) for number in self._reader.recv(4096)]
        except BlockingIOError:
            return []
