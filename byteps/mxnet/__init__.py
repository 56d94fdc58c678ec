"""byteps for MXNet 1.9: `import byteps.mxnet as bps`, and `import mxnet` after it."""

from byteps.mxnet.numpy_names import import_mxnet as _import_mxnet

_import_mxnet()  # before any other module does

from byteps.mxnet import kvstore as _kvstore
from byteps.mxnet import parameters as _parameters
from byteps.mxnet import settling as _settling
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
    "get_pushpull_speed",
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

_kvstore.install()
_parameters.install()
_settling.install()
_updates.install()
