"""Detects the launcher of this process (torchrun, mpirun, mpiexec, srun).

Pure functions of the environment variables.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

Environ = Mapping[str, str]

PORT_CANDIDATES = 16
_FIRST_PORT, _PORTS = 10000, 22000  # below 32768, Linux's first port of outgoing connections
_LIST_ITEM = re.compile(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """The identity of a process in its job, from its launcher."""

    launcher: str
    rank: int
    size: int
    local_rank: int  # -1: unknown
    local_size: int  # -1: unknown
    host: str  # host of rank 0; "": unknown
    identity: str  # the same in all processes of the job, and different in other jobs if possible

    @property
    def one_machine(self) -> bool:
        return self.local_size == self.size


def detect(environ: Environ, faults: list[str]) -> Detected | None:
    """Returns the launcher that started this process, or None. Adds invalid variables to `faults`.

    torchrun takes precedence over mpirun, and mpirun over srun, since an inner launcher inherits
    the variables of an outer one.
    """
    for recognise in (_torchrun, _open_mpi, _hydra, _slurm):
        found = recognise(environ, faults)
        if found is not None:
            _check(found, faults)
            return _with_consistent_local_rank(found)
    return None


def job_id_of(found: Detected, job_id: str = "") -> str:
    """Returns the job's id, the same in all its processes: `job_id`, or one from the launcher."""
    return job_id or f"{found.launcher}-{_digest(found, job_id).hex()[:16]}"


def ports_of(found: Detected, job_id: str = "") -> tuple[int, ...]:
    """Returns ports for the scheduler, in the order to try: rank 0 takes the first that is free.

    torchrun's own port is taken by its store, so these ports are derived from the job's identity. A
    process that connects to another job notices it by the job id in the handshake and tries the
    next port.
    """
    digest = _digest(found, job_id)
    pairs = (int.from_bytes(digest[i : i + 2], "big") for i in range(0, 2 * PORT_CANDIDATES, 2))
    return tuple(dict.fromkeys(_FIRST_PORT + pair % _PORTS for pair in pairs))


def _digest(found: Detected, job_id: str) -> bytes:
    identity = f"{found.launcher}\0{job_id or found.identity}"
    return hashlib.sha256(identity.encode(errors="surrogateescape")).digest()


def _with_consistent_local_rank(found: Detected) -> Detected:
    """Replaces local rank and size if only one of them is known.

    LOCAL_RANK, for example, is often set by hand. If they stay unknown, the ranks of a machine are
    numbered when they have joined.
    """
    if (found.local_rank == -1) == (found.local_size == -1):
        return found
    if found.one_machine:
        return replace(found, local_rank=found.rank, local_size=found.size)
    return replace(found, local_rank=-1, local_size=-1)


def _check(found: Detected, faults: list[str]) -> None:
    for what, index, count in (
        ("rank", found.rank, found.size),
        ("local rank", found.local_rank, found.local_size),
    ):
        if count != -1 and index >= count:
            faults.append(f"{found.launcher} says {what} {index} of {count}: expected less than {count}")


def _number(environ: Environ, name: str, faults: list[str], default: int = -1) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    faults.append(f"{name}={text!r}: expected a whole number")
    return default


def _torchrun(environ: Environ, faults: list[str]) -> Detected | None:
    if not all(environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return None
    return Detected(
        launcher="torchrun",
        rank=_number(environ, "RANK", faults, 0),
        size=_number(environ, "WORLD_SIZE", faults, 1),
        local_rank=_number(environ, "LOCAL_RANK", faults),
        local_size=_number(environ, "LOCAL_WORLD_SIZE", faults),
        host=environ["MASTER_ADDR"],
        # The run id is "none" unless the user sets one. The port differs between jobs of a machine.
        identity="/".join(environ.get(n, "") for n in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    )


def _open_mpi(environ: Environ, faults: list[str]) -> Detected | None:
    if not environ.get("OMPI_COMM_WORLD_SIZE"):
        return None
    return Detected(
        launcher="mpirun",
        rank=_number(environ, "OMPI_COMM_WORLD_RANK", faults, 0),
        size=_number(environ, "OMPI_COMM_WORLD_SIZE", faults, 1),
        local_rank=_number(environ, "OMPI_COMM_WORLD_LOCAL_RANK", faults),
        local_size=_number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", faults),
        host=environ.get("MASTER_ADDR", ""),
        identity=environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", ""),
    )


def _hydra(environ: Environ, faults: list[str]) -> Detected | None:
    """Detects mpiexec of MPICH and Intel MPI.

    It has no job id: concurrent jobs need BYTEPS_JOB_ID.
    """
    if not all(environ.get(name) for name in ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")):
        return None
    return Detected(
        launcher="mpiexec",
        rank=_number(environ, "PMI_RANK", faults, 0),
        size=_number(environ, "PMI_SIZE", faults, 1),
        local_rank=_number(environ, "MPI_LOCALRANKID", faults),
        local_size=_number(environ, "MPI_LOCALNRANKS", faults),
        host=environ.get("MASTER_ADDR", ""),
        identity="",
    )


def _slurm(environ: Environ, faults: list[str]) -> Detected | None:
    """Detects a task of srun.

    Batch scripts and shells of allocations have no SLURM_STEP_NODELIST.
    """
    if not all(environ.get(name) for name in ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST")):
        return None
    size = _number(environ, "SLURM_STEP_NUM_TASKS", faults, _number(environ, "SLURM_NTASKS", faults, 1))
    return Detected(
        launcher="srun",
        rank=_number(environ, "SLURM_PROCID", faults, 0),
        size=size,
        local_rank=_number(environ, "SLURM_LOCALID", faults),
        local_size=_slurm_local_size(environ, size, faults),
        host=environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"]),
        identity=f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}",
    )


def _slurm_local_size(environ: Environ, size: int, faults: list[str]) -> int:
    if _number(environ, "SLURM_STEP_NUM_NODES", faults) == 1:
        return size
    tasks = list(tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", "")))
    node = _number(environ, "SLURM_NODEID", faults)
    return tasks[node] if 0 <= node < len(tasks) else -1


def first_host(nodelist: str) -> str:
    """Returns the first host of Slurm's compressed list: "node[01-04,7],login" -> "node01"."""
    item = _LIST_ITEM.match(nodelist)
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", item[0]) if item else ""


def tasks_per_node(text: str) -> Iterator[int]:
    """Yields the numbers of Slurm's compressed list: "2(x3),1" -> 2, 2, 2, 1.

    Stops at invalid text.
    """
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", item)
        if not match:
            return
        for _ in range(int(match[2] or 1)):
            yield int(match[1])
