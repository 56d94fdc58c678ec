"""Runs a command in a virtual machine that has RDMA devices.

    python -m tests.rdma -- ibv_devinfo python -m tests.rdma --share build/release --
    build/release/transport_test --gtest_filter='*Verbs*'

The guest has this machine's files, read-only, and two Soft-RoCE devices wired to each other: rxe0
with 10.77.0.1 and rxe1 with 10.77.0.2. Ends with the command's status; 124: it ran too long; 125:
the machine failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from .command import Command, topologies
from .image import ImageError
from .machine import MACHINE_FAILED, Machine, MachineError, boot

_STREAMS = {"stdout": 1, "stderr": 2}


def main() -> int:
    """Entry point."""
    options = parse()
    shares = [share.resolve() for share in options.share]
    machine = Machine(shares, options.cpus, options.memory, options.topology)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        ending = boot(machine, Command(options.command), options.timeout, pass_on)
    except (ImageError, MachineError, OSError) as error:
        print(f"rdma-vm: {error}", file=sys.stderr)
        return MACHINE_FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    sys.stderr.write(ending.complaint)
    return ending.status


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.rdma", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the command (300)")
    parser.add_argument("--share", type=existing_folder, action="append", default=[], help="a folder it may write to")
    parser.add_argument("--cpus", type=int, default=1, help="of the guest (1)")
    parser.add_argument("--memory", type=int, default=1024, help="MiB, of the guest (1024)")
    parser.add_argument("--topology", choices=topologies(), default="pair", help="its devices (pair)")
    parser.add_argument("command", nargs="+", help="and its arguments, after --")
    return parser.parse_args()


def existing_folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return Path(text)


def pass_on(stream: str, data: bytes) -> None:
    while data:
        data = data[os.write(_STREAMS[stream], data) :]


if __name__ == "__main__":
    sys.exit(main())
