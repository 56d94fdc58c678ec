"""What waits for collectives of the process group: works, futures, functional collectives."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from frameworks.process_group import all_ranks, gloo_group, mine, of_rank, start_process_group, summed
from support.expect import expect_error
from support.waiting_objects import waiting_objects

import byteps.torch as bps
from byteps.errors import TimeoutError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
OPS = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT)


def case_async_work() -> None:
    start_process_group()
    tensors = [mine(4) for _ in range(200)]  # more of one kind than there are automatic names
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
    assert all(torch.equal(tensor, summed(4)) for tensor in tensors)
    assert works[0].result()[0] is tensors[0]


def case_few_objects_wait() -> None:
    start_process_group()
    tensors = [mine(4) for _ in range(100)]

    def start() -> list[dist.Work]:
        return [dist.all_reduce(tensor, async_op=True) for tensor in tensors]

    assert waiting_objects(start, lambda work: work.wait()) <= 12


def case_futures() -> None:
    start_process_group()
    tensor = mine(4)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert torch.equal(doubled.wait(), summed(4) * 2)
    work = dist.all_reduce(mine(4), async_op=True)
    work.wait()
    assert torch.equal(work.get_future().wait()[0], summed(4)) and work.get_future().done()
    parts = [torch.zeros(4) for _ in all_ranks(4)]
    # As with gloo.
    assert dist.all_gather(parts, mine(4), async_op=True).get_future().wait() == parts
    called = threading.Event()
    dist.all_reduce(mine(4), async_op=True).get_future().add_done_callback(lambda _: called.set())
    assert called.wait(20)


def case_futures_hold_what_gloo_has() -> None:
    start_process_group()
    size = dist.get_world_size()

    def shapes(value: object) -> object:
        return list(map(shapes, value)) if isinstance(value, list) else tuple(value.shape)

    def layouts(group: dist.ProcessGroup) -> list[object]:
        works = (
            group.allreduce([mine(3)]),
            group.allreduce_coalesced([mine(3), mine(2)]),
            group.broadcast([mine(3)], dist.BroadcastOptions()),
            group.allgather([[torch.zeros(3) for _ in range(size)]], [mine(3)]),
            group.alltoall_base(torch.zeros(size), mine(size), [], []),
            group.alltoall([torch.zeros(3) for _ in range(size)], [mine(3)] * size),
            group.barrier(),
        )
        return [shapes(work.get_future().wait()) for work in works]

    gloo = gloo_group()
    ours, theirs = layouts(dist.group.WORLD), layouts(gloo)
    assert ours == theirs, (ours, theirs)
    dist.destroy_process_group(gloo)


def case_a_callback_waits_for_other_collectives() -> None:
    """As PyTorch's PowerSGD hook does, here nested ten deep."""
    start_process_group()

    def reduce_again(done: torch.futures.Future[list[torch.Tensor]]) -> int:
        depth = int(done.value()[0][1])
        if depth == 10:
            return depth
        tensor = torch.tensor([1.0, depth + 1.0])
        return dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True).get_future().then(reduce_again).wait()

    start = dist.all_reduce(torch.tensor([1.0, 0.0]), dist.ReduceOp.AVG, async_op=True)
    assert start.get_future().then(reduce_again).wait() == 10


def case_a_copied_tensor_is_filled_without_wait() -> None:
    """As with gloo: an async collective fills its output whether the program waits or not."""
    start_process_group()
    tensor = mine(4, 6).T[::2]
    future = dist.all_reduce(tensor, async_op=True).get_future()
    future.wait()
    assert torch.equal(tensor, summed(4, 6).T[::2])


def case_wait_with_a_timeout() -> None:
    start_process_group()
    if dist.get_world_size() == 1:
        return
    tensor = mine(3)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with expect_error(TimeoutError, "expected every rank of the group"):
            work.wait(timedelta(milliseconds=50))
        assert not work.is_completed()
        bps.barrier()
    else:
        bps.barrier()
        work = dist.all_reduce(tensor, async_op=True)
    assert work.wait(timedelta(seconds=20)) and torch.equal(tensor, summed(3))


def case_functional_collectives() -> None:
    start_process_group()
    size = dist.get_world_size()

    def others(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        copied = funcol.broadcast(tensor, size - 1, dist.group.WORLD)
        exchanged = funcol.all_to_all_single(tensor, None, None, dist.group.WORLD)
        return copied + 0, exchanged + 0

    def functions(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reduced = funcol.all_reduce(tensor, "sum", dist.group.WORLD)
        gathered = funcol.all_gather_tensor(tensor, 0, dist.group.WORLD)
        scattered = funcol.reduce_scatter_tensor(gathered, "sum", 0, dist.group.WORLD)
        return reduced + 0, gathered + 0, scattered + 0

    for run in (others, torch.compile(others, backend="aot_eager", fullgraph=True)):
        copied, exchanged = run(mine(size, 2))
        assert torch.equal(copied, of_rank(size - 1, size, 2))
        assert torch.equal(exchanged, torch.stack([part[dist.get_rank()] for part in all_ranks(size, 2)]))
    for run in (functions, torch.compile(functions, backend="aot_eager", fullgraph=True)):
        reduced, gathered, scattered = run(mine(4, 2))
        assert torch.equal(reduced, summed(4, 2))
        assert torch.equal(gathered, torch.cat(all_ranks(4, 2)))
        assert torch.equal(scattered, mine(4, 2) * size)


def case_sizes_that_never_come_again() -> None:
    start_process_group()
    largest = 300
    for number in range(1, largest):
        reduced = mine(number)
        dist.all_reduce(reduced)
        dist.broadcast(copied := mine(number), dist.get_world_size() - 1)
        assert torch.equal(reduced, summed(number))
        assert torch.equal(copied, of_rank(dist.get_world_size() - 1, number))
    for make in (
        lambda rank: of_rank(rank, largest, 3).T,
        lambda rank: of_rank(rank, largest + 1)[1:],
        lambda rank: torch.empty(0),
        lambda rank: of_rank(rank, 1000).half(),
    ):
        tensor = make(dist.get_rank())
        dist.all_reduce(tensor)
        assert torch.equal(tensor, sum(make(rank) for rank in range(dist.get_world_size())))
    parts = [torch.zeros(largest + rank) for rank in range(dist.get_world_size())]
    dist.all_gather(parts, mine(largest + dist.get_rank()))
    assert all(torch.equal(part, of_rank(rank, largest + rank)) for rank, part in enumerate(parts))
