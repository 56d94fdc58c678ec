"""The process group of the backend `byteps`.

What it does itself goes through the core (`collective.py`); everything else, and tensors that the core cannot reduce,
go to an inner group of torch's gloo.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BarrierOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    ReduceScatterOptions,
    Work,
)

from byteps import runtime
from byteps.ops import ReduceOp
from byteps.torch.c10d.arguments import (
    as_list,
    as_lists,
    check_elements,
    check_list,
    check_parts,
    core_op,
    is_plain,
    options_of,
)
from byteps.torch.c10d.channel import Channel, OwnChannel, SharedChannel
from byteps.torch.c10d.collective import Collective
from byteps.torch.c10d.place import Place
from byteps.torch.eager import eager

__all__ = ["BytePSGroup", "create_group"]

Tensor = torch.Tensor
Tensors = list[Tensor]
_ProcessGroup: Any = ProcessGroup  # its methods have forms that one signature has to take all

_SMALL_PART = 16 << 10  # bytes; below, a push_pull for each part of a reduce_scatter costs more than copying them
_GRACE_S = 5.0  # the job's own verdict, which names the ranks that are missing, comes at the group's timeout


def create_group(options: Any, backend_options: object) -> ProcessGroup:
    """What torch calls for a group of the backend `byteps`, on each of its ranks.

    Args:
        options: torch's DistributedBackendOptions. No global ranks: the default group.
        backend_options: `pg_options` of init_process_group and new_group; there are none for this backend.

    Raises:
        BytePSError: the job of all ranks cannot be joined.
    """
    place = Place(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout_s=options.timeout.total_seconds(),
        name=options.group_id,
        global_ranks=tuple(options.global_ranks_in_group) or tuple(range(options.group_size)),
    )
    return BytePSGroup(_channel_of(place, is_default=not options.global_ranks_in_group), place)


def _channel_of(place: Place, *, is_default: bool) -> Channel:
    if is_default:
        return SharedChannel.of_world(place)
    if runtime.is_initialized():
        job = runtime.current_job()
        if place.global_ranks == tuple(range(job.size)) and place.rank == job.rank:
            return SharedChannel(job, joined=False)
    return OwnChannel(place)


class BytePSGroup(_ProcessGroup):  # type: ignore[misc]
    """See torch.distributed.ProcessGroup for the methods; C++ (DDP, functional collectives) calls them as well.

    The ranks of a group must make their calls in the same order.
    """

    def __init__(self, channel: Channel, place: Place) -> None:
        super().__init__(place.rank, place.size)
        self._channel = channel
        self._rank = place.rank
        self._size = place.size
        self._limit_s = place.timeout_s + _GRACE_S
        try:
            self._gloo = _inner_gloo(place)
        except BaseException:
            channel.close()
            raise
        custom = ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(custom)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), custom, self._gloo)
        self._set_group_name(place.name)

    def getBackendName(self) -> str:  # noqa: N802
        return "byteps"

    def set_timeout(self, timeout: timedelta) -> None:
        self._gloo.set_timeout(timeout)
        self._limit_s = timeout.total_seconds() + _GRACE_S

    def shutdown(self) -> None:
        """Leaves the group's job in order."""
        self._channel.close()
        self._gloo.shutdown()

    def abort(self) -> None:
        """As `shutdown`. What is under way fails, but in a job that the group shares with others."""
        self._channel.close()
        self._gloo.abort()

    # --- reductions

    @eager
    def allreduce(self, tensors: Tensors | Tensor, opts: Any = None, *, op: Any = None, timeout: Any = None) -> Work:
        tensors = as_list(tensors)
        opts = options_of(AllreduceOptions, opts, timeout, reduceOp=op)
        reduce_op = core_op(opts.reduceOp, tensors)
        if reduce_op is None:
            return self._gloo.allreduce(tensors, opts)
        return self._reduce_in_place(tensors, reduce_op, opts)

    @eager
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        opts = opts or AllreduceCoalescedOptions()
        reduce_op = core_op(opts.reduceOp, tensors)
        if reduce_op is None:
            return self._gloo.allreduce_coalesced(tensors, opts)
        return self._reduce_in_place(tensors, reduce_op, opts)

    @eager
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, *, op: Any = None, timeout: Any = None
    ) -> Work:
        outputs, inputs = as_list(outputs), as_lists(inputs)
        opts = options_of(ReduceScatterOptions, opts, timeout, reduceOp=op)
        reduce_op = core_op(opts.reduceOp, [*outputs, *(tensor for parts in inputs for tensor in parts)])
        if reduce_op is None:
            return self._gloo.reduce_scatter(outputs, inputs, opts)
        collective = self._collective()
        for output, parts in zip(outputs, inputs, strict=True):
            self._reduce_scatter(collective, output, parts, reduce_op)
        return self._start(collective, outputs, opts)

    @eager
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    @eager
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        opts = opts or ReduceScatterOptions()
        reduce_op = core_op(opts.reduceOp, [*outputs, *inputs])
        if reduce_op is None:
            return _all_of([self._gloo.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])
        collective = self._collective()
        for output, whole in zip(outputs, inputs, strict=True):
            check_parts("reduce_scatter", "input", whole, "output", output, self._size)
            self._reduce_scatter(collective, output, list(whole.reshape(-1).chunk(self._size)), reduce_op)
        return self._start(collective, outputs, opts)

    # --- copies

    @eager
    def broadcast(
        self, tensors: Tensors | Tensor, opts: Any = None, *, root: int | None = None, timeout: Any = None
    ) -> Work:
        tensors = as_list(tensors)
        opts = options_of(BroadcastOptions, opts, timeout, rootRank=root)
        if not all(map(is_plain, tensors)):
            return self._gloo.broadcast(tensors, opts)
        collective = self._collective()
        for tensor in tensors:
            memory = collective.in_place(tensor)
            collective.broadcast(memory, memory, opts.rootRank)
        return self._start(collective, tensors, opts)

    @eager
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *, timeout: Any = None) -> Work:
        outputs, inputs = as_lists(outputs), as_list(inputs)
        opts = options_of(AllgatherOptions, opts, timeout)
        if not all(map(is_plain, inputs)):
            return self._gloo.allgather(outputs, inputs, opts)
        collective = self._collective()
        for parts, tensor in zip(outputs, inputs, strict=True):
            self._gather(collective, parts, tensor)
        return self._start(collective, outputs, opts)

    @eager
    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """`outputs` has a list for each rank, of its tensors."""
        return self.allgather([list(parts) for parts in zip(*outputs, strict=True)], inputs, opts)

    @eager
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    @eager
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        opts = opts or AllgatherOptions()
        collective = self._collective()
        for whole, tensor in zip(outputs, inputs, strict=True):
            check_parts("all_gather", "output", whole, "input", tensor, self._size)
            source, target = collective.source(tensor), collective.target(whole)
            for root in range(self._size):
                part = target._replace(ptr=target.ptr + root * source.nbytes, nbytes=source.nbytes)
                collective.broadcast(source if root == self._rank else part, part, root)
        return self._start(collective, outputs, opts)

    @eager
    def barrier(self, opts: Any = None, *, timeout: Any = None) -> Work:
        opts = options_of(BarrierOptions, opts, timeout)
        collective = self._collective()
        token = torch.zeros(1, dtype=torch.uint8)
        memory = collective.in_place(token)
        collective.reduce(memory, memory, ReduceOp.Max)
        return self._start(collective, [token], opts)

    # Names that torch has given up, which C++ and scripts may still use.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- how

    def _collective(self) -> Collective:
        return Collective(self._channel)

    def _start(self, collective: Collective, outputs: Any, opts: Any) -> Work:
        given_s = opts.timeout.total_seconds()
        return collective.start(outputs, given_s if given_s > 0 else self._limit_s)

    def _reduce_in_place(self, tensors: Tensors, op: ReduceOp, opts: Any) -> Work:
        collective = self._collective()
        for tensor in tensors:
            memory = collective.in_place(tensor)
            collective.reduce(memory, memory, op)
        return self._start(collective, tensors, opts)

    def _reduce_scatter(self, collective: Collective, output: Tensor, parts: Sequence[Tensor], op: ReduceOp) -> None:
        """Every rank gets every part's sum, and keeps its own."""
        check_list("reduce_scatter", "inputs", parts, self._size, output.dtype)
        check_elements("reduce_scatter", f"input {self._rank}", parts[self._rank], "its output", output)
        if self._size > 2 and max(part.nbytes for part in parts) <= _SMALL_PART:
            first = sum(part.numel() for part in parts[: self._rank])
            collective.reduce_part(torch.cat([part.reshape(-1) for part in parts]), first, output, op)
            return
        for rank, part in enumerate(parts):
            target = output if rank == self._rank else torch.empty(part.shape, dtype=part.dtype)
            collective.reduce(collective.source(part), collective.target(target), op)

    def _gather(self, collective: Collective, parts: Sequence[Tensor], tensor: Tensor) -> None:
        check_list("all_gather", "outputs", parts, self._size, tensor.dtype)
        check_elements("all_gather", "the input", tensor, f"output {self._rank}", parts[self._rank])
        for root, part in enumerate(parts):
            target = collective.target(part)
            collective.broadcast(collective.source(tensor) if root == self._rank else target, target, root)


def _inner_gloo(place: Place) -> ProcessGroup:
    """A Backend, whose stub lacks what it has in common with a ProcessGroup."""
    generation = place.store.add(f"byteps/gloo/{place.rank}", 1)  # see `meet`
    store = PrefixStore(f"byteps/gloo{generation}", place.store)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    # Lazy: it connects to a rank when it first sends to it. Such a device cannot be shared by groups, whose connections
    # it would take for one another.
    options._devices = [ProcessGroupGloo.create_default_device(lazy_init=True)]
    options._timeout = timedelta(seconds=place.timeout_s)
    gloo: Any = ProcessGroupGloo(store, place.rank, place.size, options)
    return cast(ProcessGroup, gloo)


def _all_of(works: list[Work]) -> Work:
    """Gloo's works of one coalesced call, of which the last one is waited for last."""
    for work in works[:-1]:
        work.wait()
    return works[-1]
