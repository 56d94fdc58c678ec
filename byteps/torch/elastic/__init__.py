"""Training whose workers come and go, under the names of Horovod: `hvd.elastic.run`.

docs/elastic.md describes it.
"""

from byteps.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run, run_fn
from byteps.torch.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateDictHandler,
    StateHandler,
)
from byteps.torch.elastic.sampler import ElasticSampler
from byteps.torch.elastic.state import TorchState

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateDictHandler",
    "StateHandler",
    "TorchState",
    "run",
    "run_fn",
]
