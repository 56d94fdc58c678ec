"""Functions of Horovod that say which libraries it was built with. byteps needs none of them."""

from __future__ import annotations

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


def mpi_built() -> bool:
    """Returns False: mpirun can start a job, but the job does not use MPI."""
    return False


def mpi_enabled() -> bool:
    """Returns False: see `mpi_built`."""
    return False


def mpi_threads_supported() -> bool:
    """Returns False: see `mpi_built`. A program may use mpi4py beside byteps, also with threads."""
    return False


def gloo_built() -> bool:
    """Returns False: byteps has its own transports."""
    return False


def gloo_enabled() -> bool:
    """Returns False: see `gloo_built`."""
    return False


def nccl_built() -> int:
    """Returns 0 and no version of NCCL: CPUs sum the tensors of GPUs."""
    return 0


def ddl_built() -> bool:
    """Returns False."""
    return False


def ccl_built() -> bool:
    """Returns False."""
    return False


def cuda_built() -> bool:
    """Returns False: the framework copies tensors between its devices and the host."""
    return False


def rocm_built() -> bool:
    """Returns False: see `cuda_built`."""
    return False
