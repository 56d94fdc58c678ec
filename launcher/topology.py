"""Which cores each process of a machine gets.

Pure, but for `read_machine`, which reads /sys.
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
    cores: int  # physical: hyperthreads of one core count once


def parse_cpu_list(text: str) -> Cpus:
    """The kernel's notation: "0-3,8" -> {0, 1, 2, 3, 8}. ValueError if it is something else."""
    cpus: set[int] = set()
    for item in filter(None, text.strip().split(",")):
        first, _, last = item.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def read_machine(allowed: Cpus, sys_root: Path = Path("/sys")) -> Machine:
    """What /sys says of the CPUs `allowed`; one NUMA node and no hyperthreads where it says nothing."""
    system = sys_root / "devices/system"
    node_files = sorted(system.glob("node/node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:]))
    nodes = tuple(filter(None, (_read_cpus(path) & allowed for path in node_files)))
    siblings = (_read_cpus(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") or {cpu} for cpu in allowed)
    return Machine(nodes=nodes or (allowed,), cores=len({min(group) for group in siblings}))


def share_cores(machine: Machine, process_count: int) -> list[Cpus | None]:
    """The CPUs to bind each process to, or None: not bound.

    What binding gains is memory on the process's own NUMA node. So a process is bound to whole nodes and never to a
    slice of one: within a node the kernel balances better than a fixed slice. Nodes that cannot be shared out evenly
    stay unbound, as one slow rank slows down all.
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
    """Threads that each of the processes can use without taking cores from the others."""
    return max(1, machine.cores // process_count)


@contextmanager
def bound_to(cpus: Cpus | None) -> Iterator[None]:
    """Processes started inside are bound to `cpus` (a child inherits its parent's CPUs)."""
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
