"""Files of one boot of the guest beside the image: its init program and its command."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import cpio

_SCRIPTS = Path(__file__).with_name("guest")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # names that a shell can export


@dataclass(frozen=True)
class Command:
    """A command that the guest runs as root."""

    words: Sequence[str | Path]
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: Path = field(default_factory=Path.cwd)


def guest_archive(command: Command, shares: Sequence[Path], topology: str) -> bytes:
    """Linux unpacks it over the image's."""
    return cpio.archive(
        {
            "init": (cpio.PROGRAM, (_SCRIPTS / "init.sh").read_bytes()),
            "job/topology.sh": (cpio.FILE, (_SCRIPTS / f"{topology}.sh").read_bytes()),
            "job/shares": (cpio.FILE, "".join(f"{share}\n" for share in shares).encode()),
            "job/command.sh": (cpio.FILE, script(command).encode()),
        }
    )


def script(command: Command) -> str:
    """A shell script that becomes the command."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in command.env.items() if _VARIABLE.fullmatch(name)]
    lines.append(f"cd {shlex.quote(str(command.folder))} || exit 126")
    lines.append(f"exec {shlex.join(map(str, command.words))}")
    return "\n".join(lines) + "\n"


def topologies() -> list[str]:
    """Returns the possible sets of devices of a guest: names of scripts."""
    return sorted(path.stem for path in _SCRIPTS.glob("*.sh") if path.stem != "init")
