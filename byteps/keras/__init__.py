"""byteps for Keras 3 with the tensorflow or torch backend: the API of BytePS and Horovod.

docs/keras.md describes it.
"""

from byteps.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from byteps.keras import callbacks, elastic
from byteps.keras.broadcast import broadcast_global_variables
from byteps.keras.compression import Compression
from byteps.keras.optimizer import DistributedOptimizer
from byteps.keras.saving import load_model
from byteps.keras.values import allgather, allreduce, broadcast, push_pull
from byteps.objects import broadcast_object
from byteps.ops import Average, Max, Min, Product, ReduceOp, Sum
from byteps.runtime import (
    barrier,
    cross_rank,
    cross_size,
    get_pushpull_speed,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "get_pushpull_speed",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "push_pull",
    "rank",
    "resume",
    "rocm_built",
    "shutdown",
    "size",
    "suspend",
]
