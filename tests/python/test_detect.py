"""Launchers recognised by their variables."""

from __future__ import annotations

import pytest

from byteps.detect import Detected, detect, first_host, ports_of, tasks_per_node

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "1960574977",
}
MPIEXEC = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[07-08,12]",
    "SLURM_JOB_ID": "99",
    "SLURM_STEP_ID": "0",
}


def found_in(environ: dict[str, str]) -> Detected:
    faults: list[str] = []
    found = detect(environ, faults)
    assert found is not None
    assert not faults
    return found


@pytest.mark.parametrize(
    ("environ", "place", "host"),
    [
        (TORCHRUN, ("torchrun", 1, 2, 1, 2), "localhost"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": ""}, ("torchrun", 1, 2, -1, -1), "localhost"),
        ({**TORCHRUN, "WORLD_SIZE": "4", "LOCAL_RANK": ""}, ("torchrun", 1, 4, -1, -1), "localhost"),
        ({**TORCHRUN, "LOCAL_RANK": ""}, ("torchrun", 1, 2, 1, 2), "localhost"),
        (MPIRUN, ("mpirun", 2, 4, 0, 2), ""),
        ({**MPIRUN, "MASTER_ADDR": "first"}, ("mpirun", 2, 4, 0, 2), "first"),
        (MPIEXEC, ("mpiexec", 1, 2, 1, 2), ""),
        (SRUN, ("srun", 3, 5, 1, 2), "gpu07"),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1"}, ("srun", 3, 5, 1, 5), "gpu07"),
    ],
)
def test_place_and_host(environ: dict[str, str], place: tuple[object, ...], host: str) -> None:
    found = found_in(environ)
    assert (found.launcher, found.rank, found.size, found.local_rank, found.local_size) == place
    assert found.host == host


def test_an_inner_launcher_wins() -> None:
    assert found_in({**SRUN, **MPIRUN}).launcher == "mpirun"
    assert found_in({**SRUN, **MPIRUN, **TORCHRUN}).launcher == "torchrun"


@pytest.mark.parametrize("environ", [{}, {"RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}])
def test_what_is_no_launch(environ: dict[str, str]) -> None:
    """A batch script of Slurm has SLURM_PROCID and SLURM_NTASKS too, but is no task of a step."""
    assert detect(environ, []) is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"RANK": "one"}, "RANK='one': expected a whole number"),
        ({"RANK": "2"}, "torchrun says rank 2 of 2"),
        ({"LOCAL_RANK": "2"}, "torchrun says local rank 2 of 2"),
    ],
)
def test_nonsense_is_a_fault(change: dict[str, str], fault: str) -> None:
    faults: list[str] = []
    detect({**TORCHRUN, **change}, faults)
    assert len(faults) == 1
    assert faults[0].startswith(fault)


def test_steps_of_one_allocation_are_different_jobs() -> None:
    assert ports_of(found_in(SRUN)) != ports_of(found_in({**SRUN, "SLURM_STEP_ID": "1"}))


def test_ports_are_distinct_and_below_those_of_outgoing_connections() -> None:
    ports = ports_of(found_in(MPIRUN))
    assert len(set(ports)) == len(ports) >= 15
    assert all(10000 <= port < 32768 for port in ports)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node[01-04,7]", "node01"),
        ("login,node[1-2]", "login"),
        ("rack[2,3]n[10-12],x", "rack2n10"),
        ("a-1", "a-1"),
        ("", ""),
        ("[", ""),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


@pytest.mark.parametrize(("text", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("", []), ("2,x,1", [2])])
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert list(tasks_per_node(text)) == counts
