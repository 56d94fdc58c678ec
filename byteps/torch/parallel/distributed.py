"""`byteps.torch.ddp` under the name of BytePS."""

from byteps.torch.ddp import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
