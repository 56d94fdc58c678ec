"""Resets TCP connections as a firewall does: by the command ss of Debian's iproute2, as root."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection

__all__ = ["RESET_ALL", "reset_one", "why_no_resets"]

# The command that resets all established connections of the network namespace that it runs in.
RESET_ALL = ("ss", "-KtnH", "state", "established")


def why_no_resets() -> str | None:
    """Returns why connections cannot be reset here; None: they can."""
    if shutil.which("ss") is None:
        return "no command ss (Debian: iproute2), which resets connections"
    probe = subprocess.run(["ss", "-KtnH", "sport", "=", ":1"], capture_output=True, text=True, check=False)
    if "not permitted" in probe.stderr or probe.returncode != 0:
        return f"ss -K cannot reset connections here: {probe.stderr.strip()}"
    return None


def reset_one(pids: Collection[int], number: int) -> bool:
    """Resets the `number`-th established TCP connection of these processes, counted round and round.

    Returns whether one was reset.
    """
    listing = subprocess.run(["ss", "-tnpH", "state", "established"], capture_output=True, text=True, check=True)
    found = []
    for line in listing.stdout.splitlines():
        owners = {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
        if owners & set(pids):
            found.append([address.rpartition(":")[2] for address in line.split()[2:4]])
    if not found:
        return False
    here, there = sorted(found)[number % len(found)]
    killed = subprocess.run(
        ["ss", "-KtnH", "sport", "=", f":{here}", "dport", "=", f":{there}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return here in killed.stdout
