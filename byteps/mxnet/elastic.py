"""`byteps.elastic` under the name that programs of MXNet expect.

Horovod has no states for MXNet, and neither has byteps: a subclass of `ObjectState` broadcasts
parameters by `byteps.mxnet.broadcast_parameters` in `sync`.
"""

from byteps.elastic import *  # noqa: F403
