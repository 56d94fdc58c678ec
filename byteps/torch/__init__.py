"""byteps for PyTorch, under the names of BytePS and Horovod. examples/torch/minimal.py is a
complete program.
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
from byteps.torch import elastic
from byteps.torch import library as _library  # noqa: F401  (registers the operator)
from byteps.torch.allreduce import allreduce, allreduce_, allreduce_async, allreduce_async_
from byteps.torch.broadcast import broadcast_optimizer_state, broadcast_parameters
from byteps.torch.compression import Compression
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.ddp import DistributedDataParallel
from byteps.torch.ddp_hook import DDPHookState, ddp_hook
from byteps.torch.lr_schedule import GradualWarmup
from byteps.torch.metric_average import MetricAverage
from byteps.torch.ops import (
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    byteps_push_pull,
    declare,
    grouped_push_pull,
    grouped_push_pull_async,
    grouped_push_pull_async_inplace,
    grouped_push_pull_inplace,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)
from byteps.torch.optimizer import DistributedOptimizer
from byteps.torch.sync_batch_norm import SyncBatchNorm
from byteps.torch_plugin import register

__all__ = [
    "Average",
    "Compression",
    "CrossBarrier",
    "DDPHookState",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "GradualWarmup",
    "Max",
    "MetricAverage",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNorm",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "ddp_hook",
    "declare",
    "elastic",
    "get_pushpull_speed",
    "gloo_built",
    "gloo_enabled",
    "grouped_push_pull",
    "grouped_push_pull_async",
    "grouped_push_pull_async_inplace",
    "grouped_push_pull_inplace",
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
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "rocm_built",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]

register()
