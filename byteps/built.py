"""What Horovod's scripts ask before they use it: byteps is built with none of these libraries, and needs none."""

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
    """False: mpirun can start a job, but the job does not use MPI."""
    return False


def mpi_enabled() -> bool:
    """False, as `mpi_built`."""
    return False


def mpi_threads_supported() -> bool:
    """False, as `mpi_built`. A program may use mpi4py beside byteps, with threads or without."""
    return False


def gloo_built() -> bool:
    """False: the transports are byteps's own."""
    return False


def gloo_enabled() -> bool:
    """False, as `gloo_built`."""
    return False


def nccl_built() -> int:
    """0, where Horovod gives NCCL's version: tensors of GPUs travel through the host's memory."""
    return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """False: the framework moves tensors between its devices and the host."""
    return False


def rocm_built() -> bool:
    """False, as `cuda_built`."""
    return False
