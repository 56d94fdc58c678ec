"""byteps for MXNet 1.9: `import byteps.mxnet as bps`, and `import mxnet` after it."""

from byteps.mxnet.numpy_names import import_mxnet as _import_mxnet

_import_mxnet()  # before any other import of MXNet

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
from byteps.mxnet import drain as _drain
from byteps.mxnet import elastic
from byteps.mxnet import kvstore as _kvstore
from byteps.mxnet import parameters as _parameters
from byteps.mxnet import updates as _updates
from byteps.mxnet.broadcast import broadcast_parameters
from byteps.mxnet.compression import Compression
from byteps.mxnet.ops import broadcast, broadcast_, byteps_declare_tensor, byteps_push_pull, push_pull
from byteps.mxnet.optimizer import DistributedOptimizer
from byteps.mxnet.trainer import DistributedTrainer
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
    "DistributedTrainer",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
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

_drain.install()
_kvstore.install()
_parameters.install()
_updates.install()
