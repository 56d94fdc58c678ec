"""Distributes the cores of a machine to processes.

Pure functions, except for `read_machine`, which reads /sys, and `bound_to`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Cpus = frozenset[int]


@dataclass(frozen=True, slots=True)
class Machine:
    """The logical CPUs that this process may use."""

    nodes: tuple[Cpus, ...]  # one set for each NUMA node
    cores: int  # number of physical cores


def parse_cpu_list(text: str) -> Cpus:
    """Parses the kernel's notation: "0-3,8" -> {0, 1, 2, 3, 8}.

    Raises ValueError for other text.
    """
    cpus: set[int] = set()
    for item in filter(None, text.strip().split(",")):
        first, _, last = item.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def read_machine(allowed: Cpus, sys_root: Path = Path("/sys")) -> Machine:
    """Reads the topology of the CPUs `allowed` from /sys.

    Without information there is one NUMA node and no hyperthreads.
    """
    system = sys_root / "devices/system"
    node_files = sorted(system.glob("node/node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:]))
    nodes = tuple(filter(None, (_read_cpus(path) & allowed for path in node_files)))
    siblings = (_read_cpus(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") or {cpu} for cpu in allowed)
    return Machine(nodes=nodes or (allowed,), cores=len({min(group) for group in siblings}))


def share_cores(machine: Machine, process_count: int) -> list[Cpus | None]:
    """Returns the CPUs to bind each process to; None: do not bind it.

    The gain of binding is memory on the process's own NUMA node. So a process is bound to whole
    nodes: within a node the kernel balances better than fixed slices. If processes cannot have
    equal numbers of CPUs, none is bound, since one slow rank slows down all.
    """
    node_count = len(machine.nodes)
    if node_count == 1 or process_count == 1 or len({len(node) for node in machine.nodes}) > 1:
        return [None] * process_count
    if process_count % node_count == 0:
        per_node = process_count // node_count
        return [machine.nodes[rank // per_node] for rank in range(process_count)]
    if node_count % process_count == 0:
        per_process = node_count // process_count
        return [_union(machine.nodes[i * per_process : (i + 1) * per_process]) for i in range(process_count)]
    return [None] * process_count


def threads_of(machine: Machine, process_count: int) -> int:
    """Returns the number of threads for each process such that each thread has a core."""
    return max(1, machine.cores // process_count)


@contextmanager
def bound_to(cpus: Cpus | None) -> Iterator[None]:
    """Binds processes that are started in this context to `cpus`, which they inherit."""
    if cpus is None:
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _union(sets: Sequence[Cpus]) -> Cpus:
    return frozenset().union(*sets)


def _read_cpus(path: Path) -> Cpus:
    try:
        return parse_cpu_list(path.read_text())
    except (OSError, ValueError):
        return frozenset()
