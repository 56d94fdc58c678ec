"""Training whose workers come and go, under the names of Horovod, for programs of any framework.

`byteps.torch.elastic`, `byteps.tensorflow.elastic` and `byteps.keras.elastic` add states for models
and optimizers.
"""

from byteps.elastic.running import run, run_fn
from byteps.elastic.state import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "run",
    "run_fn",
]
