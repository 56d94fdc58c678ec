"""A communication hook for torch's own DistributedDataParallel, under any of its backends."""

# Without `from __future__ import annotations`, because DistributedDataParallel reads the hook's
# annotations.

from dataclasses import dataclass

import torch
import torch.distributed as dist

from byteps.errors import InvalidArgumentError
from byteps.ops import Average
from byteps.runtime import current_job
from byteps.torch.compression import AnyCompressor, Compression
from byteps.torch.start import start_push_pull, synchronize

__all__ = ["DDPHookState", "ddp_hook"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class DDPHookState:
    """Options of `ddp_hook`.

    Attributes:
        name: prefix of the push_pulls' names. Models that are trained at the same time need
            different ones.
        compression: one of `Compression`, for the network.
    """

    name: str = "ddp_hook"
    compression: AnyCompressor = Compression.none


def ddp_hook(
    state: DDPHookState | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Averages a bucket of gradients by byteps, without blocking.

        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(bps.DDPHookState(compression=bps.Compression.bf16), bps.ddp_hook)

    The default process group and byteps's job must consist of the same processes. The group's
    backend still broadcasts parameters and buffers.

    Args:
        state: None for the defaults.
        bucket: from DistributedDataParallel.

    Returns:
        A future of the averaged bucket. If the push_pull fails, `backward` raises its error as a
        RuntimeError.
    """
    state = state or DDPHookState()
    if not isinstance(state, DDPHookState):
        raise InvalidArgumentError(f"ddp_hook: the state is {state!r:.80}: expected a DDPHookState or None")
    if dist.is_initialized() and dist.get_world_size() != current_job().size:
        raise InvalidArgumentError(
            f"ddp_hook: the process group has {dist.get_world_size()} ranks and byteps's job {current_job().size}: "
            "both must consist of the same processes"
        )
    memory: Tensor = bucket.buffer()
    wire, context = state.compression.compress(memory)
    # DDP remakes its buckets after the first step.
    name = f"{state.name}.{bucket.index()}.{wire.dtype}.{wire.numel()}"
    handle = start_push_pull(wire, Average, name, 0, in_place=True)
    # For a future with devices, PyTorch has streams wait for what its callbacks do on them.
    done: torch.futures.Future[None] = torch.futures.Future(devices=[] if memory.is_cpu else [memory.device])

    def finish(_: torch.futures.Future[None]) -> Tensor:
        averaged = state.compression.decompress(synchronize(handle), context)
        if averaged is not memory:
            memory.copy_(averaged)
        return memory

    # DDP does not see an exception of set_exception, but it sees one of a chained callback.
    result = done.then(finish)
    handle.add_done_callback(lambda: done.set_result(None))
    return result
