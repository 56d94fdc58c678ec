"""Reads facts about processes from /proc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_LISTENING = "0A"


def listening_ports(pid: int) -> list[int]:
    """Returns the ports of the TCP sockets on which the process listens, for IPv4 and IPv6."""
    own = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            own.add(str(fd.readlink()))
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in own:
                ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def abstract_sockets(text: str) -> list[str]:
    """Names of Unix sockets in this network namespace that have no file and contain `text`."""
    names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [name for name in names if name.startswith("@") and text in name]


def open_files(pid: int) -> list[str]:
    """Returns open or mapped files of the process, as the kernel writes them, each once."""
    seen = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            seen.add(str(fd.readlink()))
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        _, _, path = line.partition("/")
        seen.add(f"/{path}")
    return sorted(seen)


def thread_names(pid: int) -> list[str]:
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            names.append((task / "comm").read_text().strip())
    return names


def thread_states(pid: int) -> str:
    """Describes the threads of a process: name, state, and kernel function (for root)."""
    states = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name)):
        with suppress(OSError):
            states.append(f"{(task / 'comm').read_text().strip()}: {_status_field(task / 'status', 'State')}")
            states.append((task / "stack").read_text().rstrip())
    return "\n".join(states)


def resident_bytes(pid: int) -> int:
    return _status_number(Path(f"/proc/{pid}/status"), "VmRSS") * 1024


def virtual_bytes(pid: int) -> int:
    return _status_number(Path(f"/proc/{pid}/status"), "VmSize") * 1024


def wake_ups(pid: int) -> int:
    """Returns how often threads of the process have slept or lost the processor."""
    return sum(
        _status_number(task / "status", kind)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for kind in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
    )


def _status_number(path: Path, field: str) -> int:
    return int(_status_field(path, field).split()[0])


def _status_field(path: Path, field: str) -> str:
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    raise KeyError(f"{path} has no {field}")
