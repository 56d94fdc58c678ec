"""Runs the emulator with memory files and sockets only, so nothing is left when it ends."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "qemu-system-x86_64"
PORTS = ("stdout", "stderr", "control")  # devices of the guest under these names
LOG = "log"  # output of the guest's kernel and of qemu
_KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet loglevel=4",
    "panic=-1 oops=panic",  # a guest that is broken ends at once
    "net.ifnames=0",
    # What costs an emulated processor time, and finds nothing:
    "mitigations=off nokaslr nowatchdog audit=0 apparmor=0 tsc=reliable no_timer_check",
    "random.trust_cpu=on rcupdate.rcu_expedited=1",
)


@dataclass(frozen=True)
class Hardware:
    """The hardware of the machine."""

    kernel: Path
    initramfs: bytes
    shares: Sequence[Path]  # mount tags share0, share1, ...; the host's whole tree is `host`
    cpus: int
    memory_mib: int


@contextmanager
def started(hardware: Hardware) -> Iterator[dict[str, socket.socket]]:
    """Runs the emulator while in the context.

    Yields:
        PORTS and LOG, each with this end of a connection to it. They are at their end once the
        emulator has ended.

    Raises:
        OSError: it cannot be started.
    """
    with ExitStack() as stack:
        pairs = {name: socket.socketpair() for name in (*PORTS, LOG)}
        for end in (end for pair in pairs.values() for end in pair):
            stack.enter_context(end)
        initramfs = stack.enter_context(os.fdopen(os.memfd_create("initramfs"), "wb"))
        initramfs.write(hardware.initramfs)
        initramfs.flush()
        theirs = {name: pair[1].fileno() for name, pair in pairs.items()}
        process = subprocess.Popen(
            # The guest's clock goes on while it waits for a core of a busy machine.
            ["nice", "-n", "-10", "setpriv", "--pdeathsig", "KILL", *_command(hardware, theirs, initramfs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=theirs[LOG],
            stderr=theirs[LOG],
            pass_fds=[*theirs.values(), initramfs.fileno()],
            start_new_session=True,  # an interrupt at the terminal is for who started it
        )
        stack.callback(_end, process)
        for _, its in pairs.values():
            its.close()  # our end sees the end when the emulator's is closed
        yield {name: own for name, (own, _) in pairs.items()}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _command(hardware: Hardware, ports: dict[str, int], initramfs: int) -> list[str | Path]:
    return [
        PROGRAM,
        *("-name", "rdma-vm", "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot"),
        *("-machine", "q35", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"),
        *("-smp", str(hardware.cpus), "-m", str(hardware.memory_mib)),
        *("-kernel", hardware.kernel, "-initrd", f"/dev/fd/{initramfs}", "-append", " ".join(_KERNEL_ARGUMENTS)),
        *("-chardev", f"socket,id={LOG},fd={ports[LOG]}", "-serial", f"chardev:{LOG}"),
        *_port_options(ports),
        *_files("host", Path("/"), "readonly=on"),
        *(word for i, share in enumerate(hardware.shares) for word in _files(f"share{i}", share, "readonly=off")),
    ]


def _port_options(ports: dict[str, int]) -> Iterator[str]:
    yield from ("-device", "virtio-serial-pci,max_ports=8")
    for number, name in enumerate(PORTS, 1):  # 0 is for consoles
        yield from ("-chardev", f"socket,id={name},fd={ports[name]}")
        yield from ("-device", f"virtserialport,chardev={name},name={name},nr={number}")


def _files(tag: str, folder: Path, access: str) -> Sequence[str]:
    path = str(folder).replace(",", ",,")
    return (
        *("-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap,{access}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    )
