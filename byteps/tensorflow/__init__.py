"""byteps for TensorFlow: `import byteps.tensorflow as bps`."""

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
from byteps.tensorflow import distribute, elastic
from byteps.tensorflow import retracing as _retracing
from byteps.tensorflow.broadcast import BroadcastGlobalVariablesHook, broadcast_global_variables, broadcast_variables
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.ops import (
    allgather,
    allreduce,
    broadcast,
    grouped_allreduce,
    grouped_push_pull,
    push_pull,
)
from byteps.tensorflow.optimizer import DistributedOptimizer
from byteps.tensorflow.tape import DistributedGradientTape

__all__ = [
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
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
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "distribute",
    "elastic",
    "get_pushpull_speed",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "grouped_push_pull",
    "init",
    "is_homogeneous",
    "is_initialized",
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

_retracing.install()
