"""byteps for TensorFlow: `import byteps.tensorflow as bps`."""

from byteps.objects import broadcast_object
from byteps.ops import Average, Max, Min, Product, ReduceOp, Sum
from byteps.runtime import (
    barrier,
    get_pushpull_speed,
    init,
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
from byteps.tensorflow import distribute
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
    "distribute",
    "get_pushpull_speed",
    "grouped_allreduce",
    "grouped_push_pull",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "metrics",
    "push_pull",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]
