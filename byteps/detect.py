"""Recognises who started this process by the variables that launchers set: torchrun, mpirun, srun.

Pure: it reads the mapping it is given and nothing else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

Environ = Mapping[str, str]

PORT_CANDIDATES = 16
_FIRST_PORT, _PORTS = 10000, 22000  # below 32768, where Linux takes the ports of outgoing connections from
_LIST_ITEM = re.compile(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """A process's place in its job, as its launcher tells it."""

    launcher: str
    rank: int
    size: int
    local_rank: int  # -1: not told
    local_size: int  # -1: not told
    host: str  # of rank 0; "": not told
    identity: str  # the same in all processes of the job; as different as possible in other jobs

    @property
    def one_machine(self) -> bool:
        return self.local_size == self.size


def detect(environ: Environ, faults: list[str]) -> Detected | None:
    """The launcher that started this process, or None; adds to `faults` what cannot be made sense of.

    torchrun wins over mpirun, mpirun over srun: an inner launcher inherits the variables of an outer one.
    """
    for recognise in (_torchrun, _open_mpi, _hydra, _slurm):
        found = recognise(environ, faults)
        if found is not None:
            _check(found, faults)
            return _with_whole_place(found)
    return None


def job_id_of(found: Detected, job_id: str = "") -> str:
    """A name for the job, the same in all its processes. `job_id` replaces what the launcher tells."""
    return job_id or f"{found.launcher}-{_digest(found, job_id).hex()[:16]}"


def ports_of(found: Detected, job_id: str = "") -> tuple[int, ...]:
    """Ports to try for the scheduler, in this order: rank 0 takes the first that is free.

    The launcher's own port is taken (torchrun's store listens there), so these follow from the job's identity;
    a process that finds another job there knows it by the job id in the handshake and tries the next.
    """
    digest = _digest(found, job_id)
    pairs = (int.from_bytes(digest[i : i + 2], "big") for i in range(0, 2 * PORT_CANDIDATES, 2))
    return tuple(dict.fromkeys(_FIRST_PORT + pair % _PORTS for pair in pairs))


def _digest(found: Detected, job_id: str) -> bytes:
    identity = f"{found.launcher}\0{job_id or found.identity}"
    return hashlib.sha256(identity.encode(errors="surrogateescape")).digest()


def _with_whole_place(found: Detected) -> Detected:
    """A place on the machine takes both numbers; with one of them alone (LOCAL_RANK is often set by hand) the ranks of
    a machine are numbered when they meet.
    """
    if (found.local_rank == -1) == (found.local_size == -1):
        return found
    place = (found.rank, found.size) if found.one_machine else (-1, -1)
    return replace(found, local_rank=place[0], local_size=place[1])


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
        # The run id is "none" unless the user gave one; the port keeps the jobs of one machine apart.
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
    """MPICH and Intel MPI. Their mpiexec gives the job no name: jobs side by side need BYTEPS_JOB_ID."""
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
    """A task of srun. A batch script or an allocation's shell has no list of nodes of its step: not a task."""
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
    """The first host of Slurm's compressed list: "node[01-04,7],login" -> "node01"."""
    item = _LIST_ITEM.match(nodelist)
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", item[0]) if item else ""


def tasks_per_node(text: str) -> Iterator[int]:
    """The numbers of Slurm's compressed list: "2(x3),1" -> 2, 2, 2, 1; nothing after what is not one."""
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", item)
        if not match:
            return
        for _ in range(int(match[2] or 1)):
            yield int(match[1])
