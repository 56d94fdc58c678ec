"""DistributedDataParallel where BytePS has it."""

from byteps.torch.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
