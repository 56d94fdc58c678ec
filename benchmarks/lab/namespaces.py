"""Linux namespaces without names: the kernel removes them when nobody holds them any more."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence

NEW_MOUNTS = 0x00020000  # linux/sched.h, CLONE_NEW*
NEW_HOSTNAME = 0x04000000
NEW_IPC = 0x08000000
NEW_NETWORK = 0x40000000
_FILES = {NEW_MOUNTS: "mnt", NEW_HOSTNAME: "uts", NEW_IPC: "ipc", NEW_NETWORK: "net"}

_libc = ctypes.CDLL(None, use_errno=True)


class Namespaces:
    """Descriptors of one namespace of each kind."""

    def __init__(self, descriptors: dict[str, int]) -> None:
        self._descriptors = descriptors

    @classmethod
    def create(cls, kinds: int, set_up: Callable[[], None]) -> Namespaces:
        """New ones. `set_up` runs inside them, and so do the processes that it starts.

        Raises:
            OSError: the kernel or our rights do not allow it.
            Exception: what `set_up` raised.
        """
        result: list[Namespaces | BaseException] = []

        def enter() -> None:  # namespaces belong to a thread: this one ends in them
            try:
                if _libc.unshare(kinds) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, f"unshare: {os.strerror(number)}")
                set_up()
                result.append(cls({name: _open(name) for kind, name in _FILES.items() if kind & kinds}))
            except BaseException as error:
                result.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if isinstance(result[0], BaseException):
            raise result[0]
        return result[0]

    def __getitem__(self, name: str) -> int:
        """The descriptor of the namespace that /proc/PID/ns calls `name`."""
        return self._descriptors[name]

    def path(self, name: str) -> str:
        """Returns the path of a namespace, which is valid while this process has it open."""
        return f"/proc/{os.getpid()}/fd/{self._descriptors[name]}"

    def enter_command(self, folder: str) -> Sequence[str]:
        """Returns the words to put before a command to run it in these namespaces, with its pid."""
        options = [f"--{_LONG_NAMES[name]}={self.path(name)}" for name in self._descriptors]
        return ["nsenter", *options, f"--wdns={folder}", "--"]

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}


_LONG_NAMES = {"mnt": "mount", "uts": "uts", "ipc": "ipc", "net": "net"}


def _open(name: str) -> int:
    return os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
