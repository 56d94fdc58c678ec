"""A communication hook for torch's own DistributedDataParallel, under any of its backends."""

# No annotations from the future: DistributedDataParallel looks at those of the hook.

from dataclasses import dataclass

import torch
import torch.distributed as dist

from byteps.errors import InvalidArgumentError
from byteps.ops import Average
from byteps.runtime import current_job
from byteps.torch.compression import AnyCompressor, Compression
from byteps.torch.ops import start_push_pull, synchronize

__all__ = ["DDPHookState", "ddp_hook"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class DDPHookState:
    """Options of `ddp_hook`.

    Attributes:
        name: under which the ranks meet; each model that is trained at the same time needs its own.
        compression: one of `Compression`, for the way over the network.
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

    The default process group and byteps's job must be of the same processes; the group's backend broadcasts
    parameters and buffers still.

    Args:
        state: None for the options' defaults.
        bucket: given by DistributedDataParallel.

    Returns:
        A future of the averaged bucket. What a push_pull fails of is raised by `backward`, as a RuntimeError.
    """
    state = state or DDPHookState()
    if not isinstance(state, DDPHookState):
        raise InvalidArgumentError(f"ddp_hook: the state is {state!r:.80}: expected a DDPHookState or None")
    if dist.is_initialized() and dist.get_world_size() != current_job().size:
        raise InvalidArgumentError(
            f"ddp_hook: the process group has {dist.get_world_size()} ranks and byteps's job {current_job().size}: "
            "both must be of the same processes"
        )
    memory: Tensor = bucket.buffer()
    wire, context = state.compression.compress(memory)
    name = f"{state.name}.{bucket.index()}.{wire.dtype}.{wire.numel()}"  # DDP makes its buckets anew after a step
    handle = start_push_pull(wire, Average, name, 0, in_place=True)
    # Of a future with devices PyTorch sees to it that streams wait for what its callbacks do on them.
    done: torch.futures.Future[None] = torch.futures.Future(devices=[memory.device] if memory.is_cuda else [])

    def finish(_: torch.futures.Future[None]) -> Tensor:
        averaged = state.compression.decompress(synchronize(handle), context)
        if averaged is not memory:
            memory.copy_(averaged)
        return memory

    # An exception is the future's only if it comes out of a chained callback: set_exception hides it from DDP.
    result = done.then(finish)
    handle.add_done_callback(lambda: done.set_result(None))
    return result
