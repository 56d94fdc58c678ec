"""The process group of the backend `byteps`.

Collectives go through the core (`collective.py`) if it has their operation for their tensors, else
through an inner group of torch's gloo.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BarrierOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroup,
    ReduceScatterOptions,
)
from torch.distributed.constants import default_pg_timeout

from byteps import runtime
from byteps._core import BlockingCalls
from byteps.errors import BytePSError
from byteps.handles import Handle
from byteps.ops import ReduceOp
from byteps.torch.c10d.arguments import (
    as_list,
    as_lists,
    check_dtypes,
    check_elements,
    check_list,
    check_one,
    check_parts,
    core_op,
    is_plain,
    options_of,
)
from byteps.torch.c10d.by_gloo import ByGloo, GlooProgress, InnerGloo
from byteps.torch.c10d.channel import Channel, OwnChannel, SharedChannel
from byteps.torch.c10d.collective import Collective
from byteps.torch.c10d.group_info import GroupInfo
from byteps.torch.c10d.progress import Awaited, Progress
from byteps.torch.c10d.reduction import Reduction
from byteps.torch.c10d.roll_call import who_is_missing
from byteps.torch.c10d.waiting import waits_in_core
from byteps.torch.c10d.work import CollectiveWork
from byteps.torch.eager import eager
from byteps.torch.tensor import own_memory

__all__ = ["BytePSGroup", "create_group"]

Tensor = torch.Tensor
Tensors = list[Tensor]

# Number of bytes. Smaller parts of a reduce_scatter are reduced together, by one push_pull.
_SMALL_PART = 16 << 10
_GRACE_S = 5.0  # at the group's timeout the job's own error comes, which names the missing ranks


def create_group(options: Any, backend_options: object) -> ProcessGroup:
    """Creates a group of the backend `byteps`; torch calls it on each of the group's ranks.

    Args:
        options: torch's DistributedBackendOptions. Without global ranks, it is the default group.
        backend_options: `pg_options` of init_process_group and new_group; this backend has none.

    Raises:
        BytePSError: the job of all ranks cannot be joined.
    """
    info = GroupInfo(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout_s=options.timeout.total_seconds(),
        name=options.group_id,
        global_ranks=tuple(options.global_ranks_in_group) or tuple(range(options.group_size)),
    )
    return BytePSGroup(_channel_of(info, is_default=not options.global_ranks_in_group), info)


def _channel_of(info: GroupInfo, *, is_default: bool) -> Channel:
    if is_default:
        return SharedChannel.of_world(info)
    if runtime.is_initialized():
        job = runtime.current_job()
        of_all = info.global_ranks == tuple(range(job.size)) and info.rank == job.rank
        # The job has one limit, so a group with another timeout needs its own job. Torch's default
        # asks for none.
        if of_all and info.timeout_s in (job.config.op_timeout_s, default_pg_timeout.total_seconds()):
            return SharedChannel(job, joined=False)
    return OwnChannel(info)


class BytePSGroup(ByGloo):
    """A process group.

    The methods are those of torch.distributed.ProcessGroup; C++ code of torch calls them, too. The
    ranks of a group must make their calls in the same order, also if several threads make them.
    """

    def __init__(self, channel: Channel, info: GroupInfo) -> None:
        super().__init__(info.rank, info.size)
        self._channel = channel
        self._rank = info.rank
        self._size = info.size
        self._info = info
        # A store may outlive groups, as torchrun's does. The number keeps their entries apart.
        generation = info.store.add(f"byteps/groups/{info.rank}", 1)
        self._store = PrefixStore(f"byteps/group{generation}", info.store)
        self.limit_s = info.timeout_s + _GRACE_S
        self._in_flight: deque[Progress] = deque()  # collectives that a barrier waits for
        self.blocking: BlockingCalls | None = None  # None: there are none, or not yet
        try:
            self._gloo = InnerGloo(info, self._store, self._set_limit)
        except BaseException:
            channel.close()
            raise
        custom = ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(custom)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), custom, self._gloo)
        self._set_group_name(info.name)
        self._enable_blocking()

    def getBackendName(self) -> str:  # noqa: N802
        return "byteps"

    def set_timeout(self, timeout: timedelta) -> None:
        self._gloo.set_timeout(timeout)
        self._set_limit(timeout)

    def shutdown(self) -> None:
        """Leaves the group's job."""
        self.blocking = None
        self._channel.close()
        self._gloo.shutdown()

    def abort(self) -> None:
        """Leaves the group's job.

        Collectives in flight fail, unless the group shares the job with others.
        """
        self.blocking = None
        self._channel.close()
        self._gloo.abort()

    # --- reductions

    @waits_in_core(AllreduceOptions, BlockingCalls.all_reduce)
    @eager
    def allreduce(self, tensors: Tensors | Tensor, opts: Any = None, *, op: Any = None, timeout: Any = None) -> Any:
        tensors = as_list(tensors)
        check_one("allreduce", "tensors", tensors, "allreduce_coalesced")
        opts = options_of(AllreduceOptions, opts, timeout, reduceOp=op)
        reduce_op = core_op(opts.reduceOp, tensors)
        if reduce_op is None:
            return self._use_gloo().allreduce(tensors, opts)
        return self._reduce_in_place(tensors, reduce_op, opts)

    @eager
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = opts or AllreduceCoalescedOptions()
        reduce_op = core_op(opts.reduceOp, tensors)
        if reduce_op is None:
            return self._use_gloo().allreduce_coalesced(tensors, opts)
        return self._reduce_in_place(tensors, reduce_op, opts)

    @eager
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, *, op: Any = None, timeout: Any = None
    ) -> Any:
        outputs, inputs = as_list(outputs), as_lists(inputs)
        check_one("reduce_scatter", "outputs", outputs, "reduce_scatter_single_coalesced")
        check_one("reduce_scatter", "lists of inputs", inputs, "reduce_scatter_single_coalesced")
        opts = options_of(ReduceScatterOptions, opts, timeout, reduceOp=op)
        reduce_op = core_op(opts.reduceOp, [*outputs, *inputs[0]])
        if reduce_op is None:
            return self._use_gloo().reduce_scatter(outputs, inputs, opts)
        collective = self._collective()
        self._reduce_scatter(collective, outputs[0], inputs[0], reduce_op)
        return self._start(collective, outputs, opts)

    @eager
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    @eager
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        opts = opts or ReduceScatterOptions()
        reduce_op = core_op(opts.reduceOp, [*outputs, *inputs])
        if reduce_op is None:
            gloo = self._use_gloo()
            pairs = [self._flat(output, whole) for output, whole in zip(outputs, inputs, strict=True)]
            return _all_of([gloo._reduce_scatter_base(output, whole, opts) for output, whole in pairs])
        collective = self._collective()
        for output, whole in zip(outputs, inputs, strict=True):
            check_parts("reduce_scatter", "input", whole, "output", output, self._size)
            self._reduce_scatter(collective, output, list(whole.reshape(-1).chunk(self._size)), reduce_op)
        return self._start(collective, outputs, opts)

    # --- copies

    @waits_in_core(BroadcastOptions, BlockingCalls.broadcast)
    @eager
    def broadcast(
        self, tensors: Tensors | Tensor, opts: Any = None, *, root: int | None = None, timeout: Any = None
    ) -> Any:
        tensors = as_list(tensors)
        check_one("broadcast", "tensors", tensors, "broadcast for each")
        opts = options_of(BroadcastOptions, opts, timeout, rootRank=root)
        if not is_plain(tensors[0]):
            return self._use_gloo().broadcast(tensors, opts)
        collective = self._collective()
        memory = collective.in_place(tensors[0])
        collective.broadcast(memory, memory, opts.rootRank)
        return self._start(collective, tensors, opts)

    @eager
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *, timeout: Any = None) -> Any:
        outputs, inputs = as_lists(outputs), as_list(inputs)
        check_one("allgather", "inputs", inputs, "allgather_coalesced")
        check_one("allgather", "lists of outputs", outputs, "allgather_coalesced")
        opts = options_of(AllgatherOptions, opts, timeout)
        if not is_plain(inputs[0]):
            return self._use_gloo().allgather(outputs, inputs, opts)
        collective = self._collective()
        self._gather(collective, outputs[0], inputs[0])
        return self._start(collective, outputs[0], opts)

    @eager
    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """`outputs` has a list of tensors for each rank."""
        check_list("allgather_coalesced", "lists of outputs", outputs, self._size)
        collective = self._collective()
        for parts, tensor in zip(zip(*outputs, strict=True), inputs, strict=True):
            self._gather(collective, parts, tensor)
        return self._start(collective, outputs, opts or AllgatherOptions())

    @eager
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [input], opts)

    @eager
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
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
    def barrier(self, opts: Any = None, *, timeout: Any = None) -> Any:
        """Completes after all ranks' calls and this rank's earlier collectives."""
        opts = options_of(BarrierOptions, opts, timeout)
        earlier: list[Awaited] = [*self._in_flight, *self._channel.waiting()]
        if self._gloo_was_used:  # the same on all ranks
            self._gloo_was_used = False
            earlier.append(GlooProgress(self._gloo.barrier(opts)))
        collective = self._collective()
        token = torch.zeros(1, dtype=torch.uint8)
        memory = collective.in_place(token)
        collective.reduce(memory, memory, ReduceOp.Max)
        return self._start(collective, [], opts, earlier)

    # Older names, which C++ and scripts may still use.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- implementation

    def _set_limit(self, timeout: timedelta) -> None:
        """Sets the limit of later waits. The job keeps its own limit."""
        self.limit_s = timeout.total_seconds()
        if self.blocking is not None:
            self.blocking.limit_s = self.limit_s

    def explain(self, error: BytePSError) -> BytePSError:
        """Returns an error of the job with what only the group knows."""
        return self._channel.explain(error)

    def missing(self, number: int) -> str:
        if number == 0:
            return "gloo does not tell which ranks are missing"
        return who_is_missing(self._store, self._rank, self._info.global_ranks, number)

    def _collective(self) -> Collective:
        return Collective(self._channel.explain)

    def _start(self, collective: Collective, outputs: Any, opts: Any, earlier: Sequence[Awaited] = ()) -> Any:
        work = collective.work(outputs, opts.timeout.total_seconds(), self, earlier)
        self._channel.submit(collective)
        self._enable_blocking()
        self._remember(collective.progress)
        return work

    def _after_gloo(self, work: Any, outputs: Tensors, copy_back: Callable[[], object], opts: Any) -> Any:
        progress = Progress(self._channel.explain, [GlooProgress(work)])
        devices = {tensor.device for tensor in outputs if not tensor.is_cpu}
        progress.begin((), copy_back)
        self._remember(progress)
        return CollectiveWork(progress, outputs, devices, opts.timeout.total_seconds(), self)

    def _remember(self, progress: Progress) -> None:
        in_flight = self._in_flight
        while in_flight and (in_flight[0].completed or in_flight[0].poll()):
            in_flight.popleft()
        in_flight.append(progress)

    def _reduce_in_place(self, tensors: Tensors, op: ReduceOp, opts: Any) -> Any:
        memory = own_memory(tensors[0]) if len(tensors) == 1 else None
        if memory is not None:
            reduction = Reduction(memory, op, self._channel.explain)
            self._channel.submit(reduction)
            self._enable_blocking()
            self._remember(reduction.progress)
            return CollectiveWork(reduction.progress, tensors, (), opts.timeout.total_seconds(), self)
        collective = self._collective()
        for tensor in tensors:
            memory = collective.in_place(tensor)
            collective.reduce(memory, memory, op)
        return self._start(collective, tensors, opts)

    def _enable_blocking(self) -> None:
        """Has collectives in which the caller waits take the short way, once the job is joined."""
        if self.blocking is not None or not self._channel.is_joined:
            return
        group = weakref.ref(self)  # a cycle through the core would never be collected

        def go_on(handle: Handle, number: int) -> Progress:
            alive = group()
            assert alive is not None  # the collective's thread is in one of its methods
            return alive._go_on_with(handle, number)

        self.blocking = self._channel.blocking_calls(self.limit_s, go_on)

    def _go_on_with(self, handle: Handle, number: int) -> Progress:
        """Returns the progress of a collective that its thread has stopped waiting for."""
        progress = Progress(self._channel.explain)
        progress.number = number
        progress.begin((handle,))
        self._remember(progress)
        return progress

    def _flat(self, output: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """Returns both as one dimension, because gloo expects parts to be rows."""
        check_parts("reduce_scatter", "input", whole, "output", output, self._size)
        return (output.view(-1), whole.reshape(-1)) if output.is_contiguous() else (output, whole)

    def _reduce_scatter(self, collective: Collective, output: Tensor, parts: Sequence[Tensor], op: ReduceOp) -> None:
        """Every rank reduces every part, and keeps its own."""
        check_list("reduce_scatter", "inputs", parts, self._size)
        check_dtypes("reduce_scatter", "inputs", parts, output.dtype)
        check_elements("reduce_scatter", f"input {self._rank}", parts[self._rank], "its output", output)
        if self._size > 2 and max(part.nbytes for part in parts) <= _SMALL_PART:
            first = sum(part.numel() for part in parts[: self._rank])
            collective.reduce_part(torch.cat([part.reshape(-1) for part in parts]), first, output, op)
            return
        for rank, part in enumerate(parts):
            target = output if rank == self._rank else collective.scratch(part)
            collective.reduce(collective.source(part), collective.target(target), op)

    def _gather(self, collective: Collective, parts: Sequence[Tensor], tensor: Tensor) -> None:
        check_list("all_gather", "outputs", parts, self._size)
        check_dtypes("all_gather", "outputs", parts, tensor.dtype)
        check_elements("all_gather", "the input", tensor, f"output {self._rank}", parts[self._rank])
        for root, part in enumerate(parts):
            target = collective.target(part)
            collective.broadcast(collective.source(tensor) if root == self._rank else target, target, root)


def _all_of(works: list[Any]) -> Any:
    """Waits for all Works of a coalesced call but the last, and returns that."""
    for work in works[:-1]:
        work.wait()
    return works[-1]
