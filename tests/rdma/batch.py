"""Runs several commands in one boot of the machine, which takes longer than most of them."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .machine import MACHINE_FAILED, Completed, run_in_vm

_KILL_AFTER_S = 5  # time for commands that ignore SIGTERM


def run_all_in_vm(
    commands: Mapping[str, Sequence[str | Path]], timeout_s: float, *, shares: Sequence[Path] = (), **machine: Any
) -> dict[str, Completed]:
    """Runs the commands like run_in_vm, one after the other, also after a failure.

    Args:
        commands: name -> program and arguments. Names are good as those of files.
        timeout_s: of each.
        shares: as for run_in_vm.
        machine: further arguments of run_in_vm.

    Returns:
        name -> how its command ended; MACHINE_FAILED, with the reason, if the machine did not come
        to its end.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = "\n".join(_line(folder / name, command, timeout_s) for name, command in commands.items())
        total_s = len(commands) * (timeout_s + _KILL_AFTER_S) + _KILL_AFTER_S
        whole = run_in_vm(["sh", "-c", script], total_s, shares=[folder, *shares], **machine)
        return {name: _completed(folder / name, whole) for name in commands}


def _line(base: Path, command: Sequence[str | Path], timeout_s: float) -> str:
    limited = ["timeout", "-k", str(_KILL_AFTER_S), f"{timeout_s:g}", *map(str, command)]
    return f"{shlex.join(limited)} >{base}.stdout 2>{base}.stderr; echo $? >{base}.status"


def _completed(base: Path, whole: Completed) -> Completed:
    stdout, stderr, status = (_text(base.with_suffix(suffix)) for suffix in (".stdout", ".stderr", ".status"))
    if not status:
        return Completed(MACHINE_FAILED, stdout, stderr + whole.stderr)
    return Completed(int(status), stdout, stderr)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
