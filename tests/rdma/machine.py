"""A virtual machine with RDMA devices, in which to run one command.

Debian's kernel under an emulator (no KVM), with Soft-RoCE devices. The guest has the host's files,
read-only, so what was built here runs there, with this process's environment and folder. /tmp can
be written to, but what is written there is gone afterwards; the folders in `shares` are the host's
own. A guest boots in about 4 s; its processors are many times slower than the host's. With more
than one of them Soft-RoCE's packets overtake each other.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import image, qemu
from .command import Command, guest_archive

TIMED_OUT = 124
MACHINE_FAILED = 125
BOOT_LIMIT_S = 120.0
TEST_LIMIT_S = 1500.0  # limit of a test: a download, another test's machine, and a second try
_END_LIMIT_S = 10.0  # time for output in flight when the command has ended
_BOOTS = 2
_LOG_BYTES = 8000


class MachineError(Exception):
    """A machine cannot be started here."""


@dataclass(frozen=True)
class Machine:
    """The configuration of a machine."""

    shares: Sequence[Path] = ()  # folders of the host to share for writing
    cpus: int = 1
    memory_mib: int = 1024  # including files in /tmp and /dev/shm
    topology: str = "pair"  # one of command.topologies()


@dataclass(frozen=True)
class Completed:
    """The result of a command, or of the machine."""

    status: int  # the command's (128 + a signal's number), TIMED_OUT or MACHINE_FAILED
    stdout: str
    stderr: str  # the command's; then the machine's end, if it did not end by itself

    def describe(self) -> str:
        return f"status {self.status}\n--- stdout:\n{self.stdout}\n--- stderr:\n{self.stderr}"


@dataclass(frozen=True)
class Ending:
    """The end of a boot."""

    status: int
    complaint: str  # reason of TIMED_OUT or MACHINE_FAILED; empty when the command ended by itself
    came_up: bool  # and the command was started


def run_in_vm(
    command: Sequence[str | Path],
    timeout_s: float,
    *,
    shares: Sequence[Path] = (),
    cpus: int = 1,
    memory_mib: int = 1024,
    topology: str = "pair",
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Completed:
    """Runs a command in a machine of its own, of which tests have one at a time.

    Args:
        command: program and arguments.
        timeout_s: from when the guest is up.
        shares: folders that it may write to; they exist.
        cpus: of the guest.
        memory_mib: of the guest.
        topology: "pair": rxe0 with 10.77.0.1 and rxe1 with 10.77.0.2, wired to each other; "none":
            no device.
        env: added to this process's environment.
        folder: to run in; None: this process's.

    Raises:
        MachineError: what a machine needs is missing here.
        image.ImageError: it could not be prepared.
    """
    machine = Machine([share.resolve() for share in shares], cpus, memory_mib, topology)
    what = Command(command, {**os.environ, **(env or {})}, (folder or Path.cwd()).resolve())
    image.prepared()
    with image.locked(image.FOLDER / "machine.lock"):
        for _ in range(_BOOTS):  # never repeats a command that has begun
            output = {"stdout": bytearray(), "stderr": bytearray()}
            ending = boot(machine, what, timeout_s, lambda name, data: output[name].extend(data))  # noqa: B023
            if ending.came_up:
                break
    stdout, stderr = (bytes(data).decode(errors="replace") for data in output.values())
    return Completed(ending.status, stdout, stderr + ending.complaint)


def boot(machine: Machine, command: Command, timeout_s: float, output: Callable[[str, bytes], None]) -> Ending:
    """Boots the machine and runs the command.

    Args:
        machine: which.
        command: what.
        timeout_s: from when the guest is up.
        output: gets "stdout" or "stderr" with what the command has written, piece by piece.
    """
    for program in (qemu.PROGRAM, "setpriv"):
        if not shutil.which(program):
            raise MachineError(f"{program} is missing: tools/bootstrap.sh test-all installs it")
    files = image.prepared()
    initramfs = files.initramfs.read_bytes() + guest_archive(command, machine.shares, machine.topology)
    hardware = qemu.Hardware(files.kernel, initramfs, machine.shares, machine.cpus, machine.memory_mib)
    with qemu.started(hardware) as ports, selectors.DefaultSelector() as selector:
        conversation = _Conversation(selector, ports, output)
        conversation.follow(BOOT_LIMIT_S, lambda: conversation.is_up)
        if conversation.is_up:
            conversation.follow(timeout_s, lambda: conversation.status is not None)
        if conversation.status is not None:
            conversation.follow(_END_LIMIT_S, lambda: False)
        return _ending(conversation, timeout_s)


def _ending(conversation: _Conversation, timeout_s: float) -> Ending:
    is_up = conversation.is_up
    if conversation.status is not None:
        return Ending(conversation.status, "", is_up)
    if is_up and conversation.goes_on:
        return Ending(TIMED_OUT, f"\nrdma-vm: the command still ran after {timeout_s:g} s\n", is_up)
    said = bytes(conversation.log).decode(errors="replace").strip() or "nothing"
    what = f"not up after {BOOT_LIMIT_S:g} s" if conversation.goes_on else "ended by itself"
    when = "while the command ran" if is_up else "before the command"
    why = conversation.failure or "no reason given"
    complaint = f"\nrdma-vm: the guest {what}, {when}: {why}. Its kernel and qemu said:\n{said}\n"
    return Ending(MACHINE_FAILED, complaint, is_up)


class _Conversation:
    """The output of the guest and its emulator."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        ports: Mapping[str, socket.socket],
        output: Callable[[str, bytes], None],
    ) -> None:
        self.is_up = False
        self.status: int | None = None  # exit code of the command
        self.failure = ""  # errors of the guest's init program
        self.log = bytearray()  # the last output of the machine
        self._output = output
        self._control = b""
        self._selector = selector
        for name, port in ports.items():
            self._selector.register(port, selectors.EVENT_READ, name)

    @property
    def goes_on(self) -> bool:
        """Whether there is more output to come, and the emulator runs."""
        return bool(self._selector.get_map())

    def follow(self, limit_s: float, is_enough: Callable[[], bool]) -> None:
        """Reads until there is enough or no more, or the time limit has expired."""
        end = time.monotonic() + limit_s
        while self.goes_on and not is_enough():
            ready = self._selector.select(max(0.0, end - time.monotonic()))
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                self._read(key.fileobj, key.data)
            if time.monotonic() >= end:
                return

    def _read(self, port: socket.socket, name: str) -> None:
        try:
            data = port.recv(1 << 16)
        except ConnectionResetError:  # ended with something unread
            data = b""
        if not data:
            self._selector.unregister(port)
        elif name == qemu.LOG:
            self.log += data
            del self.log[:-_LOG_BYTES]
        elif name == "control":
            *lines, self._control = (self._control + data).split(b"\n")
            for line in lines:
                self._obey(line.decode(errors="replace"))
        else:
            self._output(name, data)

    def _obey(self, line: str) -> None:
        """The lines of guest/init.sh."""
        word, _, rest = line.partition(" ")
        if word == "ready":
            self.is_up = True
        elif word == "exit":
            self.status = int(rest)
        else:
            self.failure = line
