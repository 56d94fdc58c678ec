"""Collectives of the backend byteps, compared with torch's gloo or their definition."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from frameworks.process_group import all_ranks, gloo_group, mine, of_rank, start_process_group, summed
from frameworks.torch_process_group_work_cases import *  # noqa: F403
from support.expect import expect_error
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec

import byteps.torch as bps
from byteps.errors import InvalidArgumentError
from byteps.in_flight import InFlight

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
OPS = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT)


def case_the_backend_is_there() -> None:
    assert dist.is_backend_available("byteps")
    start_process_group()
    assert dist.get_backend() == "byteps" and dist.group.WORLD.name() == "byteps"
    assert (dist.get_rank(), dist.get_world_size()) == (bps.rank(), bps.size())
    # The same job carries both.
    assert bps.push_pull(torch.ones(3), False, "beside")[0] == bps.size()


def case_all_reduce_like_gloo() -> None:
    gloo = gloo_group()
    for dtype in (*FLOATS, *INTEGERS):
        for op in OPS:
            ours, theirs = mine(5, 3, dtype=dtype), mine(5, 3, dtype=dtype)
            dist.all_reduce(ours, op)
            dist.all_reduce(theirs, op, group=gloo)
            assert torch.equal(ours, theirs), (dtype, op)
    dist.destroy_process_group(gloo)


def case_all_reduce_average() -> None:
    for dtype in FLOATS:
        tensor = mine(7, dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        expected = torch.stack(all_ranks(7)).mean(0)
        assert torch.allclose(tensor.float(), expected, rtol=1e-2 if dtype.itemsize == 2 else 1e-6), dtype


def case_all_reduce_of_odd_tensors() -> None:
    expected = summed(4, 6)
    for lay_out in (
        lambda t: t,
        lambda t: t.T.contiguous().T,
        lambda t: torch.stack((t, t), dim=-1)[..., 0],
        lambda t: torch.cat((t, t))[4:],
    ):
        tensor = lay_out(mine(4, 6))
        strides = tensor.stride()
        dist.all_reduce(tensor)
        assert torch.equal(tensor, expected) and tensor.stride() == strides
    empty = torch.empty(0)
    dist.all_reduce(empty)
    scalar = torch.tensor(1.0)
    dist.all_reduce(scalar)
    assert scalar == dist.get_world_size()
    complex_tensor = torch.complex(mine(3), mine(3) * 2)
    dist.all_reduce(complex_tensor)
    assert torch.equal(complex_tensor, torch.complex(summed(3), summed(3) * 2))


def case_all_reduce_keeps_autograd() -> None:
    parameter = torch.nn.Parameter(mine(3))
    dist.all_reduce(parameter.data)
    with torch.no_grad():
        dist.all_reduce(parameter)
    assert parameter.is_leaf and parameter.requires_grad
    assert torch.equal(parameter.detach(), summed(3) * dist.get_world_size())


def case_what_the_core_cannot_reduce_goes_to_gloo() -> None:
    bits = mine(4, dtype=torch.int32)
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    expected = all_ranks(4, dtype=torch.int32)[0]
    for other in all_ranks(4, dtype=torch.int32)[1:]:
        expected = expected | other
    assert torch.equal(bits, expected)
    sparse = torch.sparse_coo_tensor([[dist.get_rank()]], [1.0], (dist.get_world_size(),))
    dist.all_reduce(sparse)
    assert torch.equal(sparse.to_dense(), torch.ones(dist.get_world_size()))


def case_all_reduce_coalesced() -> None:
    tensors = [mine(3), mine(2, 2), mine(1)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert all(torch.equal(tensor, summed(*tensor.shape)) for tensor in tensors)


def case_tensors_that_share_memory() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = mine(5)
    dist.all_reduce_coalesced([tensor, tensor])
    assert torch.equal(tensor, summed(5))
    whole = mine(6)
    dist.all_reduce_coalesced([whole[:4], whole[2:]])
    assert torch.equal(whole, summed(6))
    parts = [torch.zeros(3) for _ in range(size)]
    other = parts[(rank + 1) % size].copy_(mine(3))  # the slot of another rank's part
    dist.all_gather(parts, other)
    assert all(map(torch.equal, parts, all_ranks(3)))
    rows = mine(size, 20_000)
    output = rows[(rank + 1) % size]
    dist.reduce_scatter(output, list(rows))
    assert torch.equal(output, summed(size, 20_000)[rank])


def case_lists_of_several_tensors_are_refused() -> None:
    group, size = dist.group.WORLD, dist.get_world_size()
    for call in (
        lambda: group.allreduce([torch.zeros(2), torch.zeros(2)]),
        lambda: group.broadcast([torch.zeros(2), torch.zeros(2)]),
        lambda: group.allgather([[torch.zeros(2)] * size] * 2, [torch.zeros(2)] * 2),
        lambda: group.reduce_scatter([torch.zeros(2)] * 2, [[torch.zeros(2)] * size] * 2),
        lambda: group.allreduce([]),
    ):
        with expect_error(InvalidArgumentError, "expected one; call"):
            call()


def case_broadcast_of_any_dtype() -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.int16):
        for make in (
            lambda rank, dtype=dtype: of_rank(rank, 3, 2, dtype=dtype),
            lambda rank, dtype=dtype: of_rank(rank, 2, 3, dtype=dtype).T,
            lambda rank, dtype=dtype: of_rank(rank, dtype=dtype),
        ):
            for root in range(dist.get_world_size()):
                dist.broadcast(tensor := make(dist.get_rank()), root)
                assert torch.equal(tensor, make(root)), (dtype, root)


def case_all_gather() -> None:
    size = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
        parts = [torch.zeros(2, 3, dtype=dtype) for _ in range(size)]
        dist.all_gather(parts, mine(2, 3, dtype=dtype))
        assert all(map(torch.equal, parts, all_ranks(2, 3, dtype=dtype)))
        whole = torch.zeros(2 * size, 3, dtype=dtype)
        dist.all_gather_single(whole, mine(2, 3, dtype=dtype))
        assert torch.equal(whole, torch.cat(all_ranks(2, 3, dtype=dtype)))
        stacked = torch.zeros(3, size, 2, dtype=dtype).movedim(1, 0).mT  # not contiguous
        dist.all_gather_into_tensor(stacked, mine(2, 3, dtype=dtype))
        assert torch.equal(stacked, torch.stack(all_ranks(2, 3, dtype=dtype)))


def case_all_gather_in_place() -> None:
    whole = torch.zeros(dist.get_world_size(), 5)
    own = whole[dist.get_rank()]
    own.copy_(mine(5))
    dist.all_gather_into_tensor(whole, own)
    assert torch.equal(whole, torch.stack(all_ranks(5)))


def case_all_gather_of_unequal_parts() -> None:
    parts = [torch.zeros(rank + 1) for rank in range(dist.get_world_size())]
    dist.all_gather(parts, mine(dist.get_rank() + 1))
    assert all(torch.equal(part, of_rank(rank, rank + 1)) for rank, part in enumerate(parts))


def case_all_gather_coalesced() -> None:
    size = dist.get_world_size()
    wholes = [torch.zeros(size * n) for n in (1, 4)]
    with dist._coalescing_manager():
        for whole, n in zip(wholes, (1, 4), strict=True):
            dist.all_gather_single(whole, mine(n))
    assert all(torch.equal(whole, torch.cat(all_ranks(n))) for whole, n in zip(wholes, (1, 4), strict=True))
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [mine(2), mine(3)])
    assert all(torch.equal(a, of_rank(r, 2)) and torch.equal(b, of_rank(r, 3)) for r, (a, b) in enumerate(lists))


def case_reduce_scatter() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    expected = summed(size, 3)[rank]
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        own = mine(size, 3, dtype=dtype)
        output = torch.zeros(3, dtype=dtype)
        dist.reduce_scatter(output, list(own))
        assert torch.equal(output, expected.to(dtype))
        dist.reduce_scatter_tensor(output.zero_(), own)
        assert torch.equal(output, expected.to(dtype)) and torch.equal(own, mine(size, 3, dtype=dtype))
    dist.reduce_scatter_single(output := torch.zeros(3), mine(size, 3), dist.ReduceOp.AVG)
    assert torch.allclose(output, expected / size)
    large = 10_000  # elements: each part is a push_pull of its own
    dist.reduce_scatter_single(output := torch.zeros(large), mine(size, large))
    assert torch.equal(output, summed(size, large)[rank])
    dist.reduce_scatter_single(torch.zeros(0), torch.zeros(0))
    uneven = list(mine(sum(range(1, size + 1))).split(list(range(1, size + 1))))
    dist.reduce_scatter(output := torch.zeros(rank + 1), uneven)
    assert torch.equal(output, summed(sum(range(1, size + 1))).split(list(range(1, size + 1)))[rank])
    outputs = [torch.zeros(3), torch.zeros(1)]
    with dist._coalescing_manager():
        dist.reduce_scatter_single(outputs[0], mine(size, 3))
        dist.reduce_scatter_single(outputs[1], mine(size, 1))
    assert torch.equal(outputs[0], expected) and torch.equal(outputs[1], summed(size, 1)[rank])


def case_reduce_scatter_of_what_goes_to_gloo() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    bits = [1 << rank for rank in range(size)]
    for scatter, wrap in ((dist.reduce_scatter_single, torch.stack), (dist.reduce_scatter, list)):
        output = torch.zeros(2, dtype=torch.int32)
        scatter(output, wrap([torch.full((2,), bits[rank], dtype=torch.int32)] * size), dist.ReduceOp.BOR)
        assert torch.equal(output, torch.full((2,), sum(bits), dtype=torch.int32))
        waves = torch.zeros(2, dtype=torch.complex64)
        scatter(waves, wrap([torch.full((2,), complex(part, rank)) for part in range(size)]))
        assert torch.equal(waves, torch.full((2,), complex(size * rank, sum(range(size)))))


def case_wrong_shapes_are_refused() -> None:
    size = dist.get_world_size()
    for call in (
        lambda: dist.all_gather([torch.zeros(2)] * (size + 1), torch.zeros(2)),
        lambda: dist.all_gather([torch.zeros(3)] * size, torch.zeros(2)),
        lambda: dist.all_gather_single(torch.zeros(2 * size + 1), torch.zeros(2)),
        lambda: dist.reduce_scatter(torch.zeros(2), [torch.zeros(2)] * (size + 1)),
        lambda: dist.group.WORLD.reduce_scatter(torch.zeros(2), [torch.zeros(2, dtype=torch.int32)] * size),
        lambda: dist.reduce_scatter_single(torch.zeros(2), torch.zeros(2 * size + 1)),
    ):
        with expect_error(InvalidArgumentError, "expected"):
            call()


def case_barrier_and_objects() -> None:
    dist.barrier()
    work = dist.barrier(async_op=True)
    assert work.wait() and work.is_completed()
    size = dist.get_world_size()
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": dist.get_rank(), "text": "x" * 1000 * dist.get_rank()})
    assert [found["rank"] for found in objects] == list(range(size))
    received = [{"of": dist.get_rank()}]
    dist.broadcast_object_list(received, src=size - 1)
    assert received == [{"of": size - 1}]
    gathered = [None] * size if dist.get_rank() == 0 else None
    dist.gather_object(dist.get_rank(), gathered, dst=0)
    assert gathered in (None, list(range(size)))
    scattered: list[object] = [None]
    dist.scatter_object_list(scattered, [f"for {r}" for r in range(size)] if dist.get_rank() == 0 else None, src=0)
    assert scattered == [f"for {dist.get_rank()}"]


def case_the_rest_goes_to_gloo() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if size > 1:
        requests = [dist.isend(mine(3), (rank + 1) % size), dist.irecv(received := torch.zeros(3), (rank - 1) % size)]
        for request in requests:
            request.wait()
        assert torch.equal(received, of_rank((rank - 1) % size, 3))
    output = torch.zeros(size)
    dist.all_to_all_single(output, torch.full((size,), float(rank)))
    assert torch.equal(output, torch.arange(float(size)))
    tensor = mine(3)
    dist.reduce(tensor, dst=0)
    assert rank > 0 or torch.equal(tensor, summed(3))
    gathered = [torch.zeros(3) for _ in range(size)] if rank == 0 else None
    dist.gather(mine(3), gathered, dst=0)
    assert rank > 0 or all(map(torch.equal, gathered, all_ranks(3)))
    part = torch.zeros(3)
    dist.scatter(part, all_ranks(3) if rank == 0 else None, src=0)
    assert torch.equal(part, mine(3))


def case_all_to_all_of_unequal_parts() -> None:
    """The part from rank i to rank j has i + 2j elements."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def part(source: int, target: int, dtype: torch.dtype) -> torch.Tensor:
        return of_rank(10 * source + target, source + 2 * target, dtype=dtype)

    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
        outputs = [torch.zeros_like(part(other, rank, dtype)) for other in range(size)]
        dist.all_to_all(outputs, [part(rank, other, dtype) for other in range(size)])
        assert all(torch.equal(output, part(other, rank, dtype)) for other, output in enumerate(outputs)), dtype
    columns = torch.zeros(4, size).unbind(1)  # not contiguous
    dist.all_to_all(list(columns), [of_rank(rank, 2, 2).T.reshape(4)] * size)
    assert all(torch.equal(column, of_rank(other, 2, 2).T.reshape(4)) for other, column in enumerate(columns))
    outputs = [torch.zeros(100_000) for _ in range(size)]
    dist.all_to_all(outputs, [mine(100_000)] * size, async_op=True)
    dist.barrier()  # waits for it
    assert all(map(torch.equal, outputs, all_ranks(100_000)))
    with expect_error(InvalidArgumentError, "the dtype of outputs[0] is torch.int32"):
        dist.group.WORLD.alltoall([torch.zeros(1, dtype=torch.int32)] * size, [torch.zeros(1)] * size)


def case_shards_are_gathered_without_a_gpu() -> None:
    """PyTorch gathers on the last device that the backend is registered for."""
    size = dist.get_world_size()
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{rank}/cpu" for rank in range(size)])
    shards = sharded_tensor.ones(spec, 2 * size, 3)
    shards.local_shards()[0].tensor.mul_(dist.get_rank() + 1)
    whole = torch.zeros(2 * size, 3) if dist.get_rank() == 0 else None
    shards.gather(0, whole)
    expected = torch.arange(1.0, size + 1).repeat_interleave(2).view(-1, 1).expand(-1, 3)
    assert whole is None or torch.equal(whole, expected)


def case_barrier_implies_wait() -> None:
    """PyTorch's test of that name; also with copies back, with gloo, and without a wait."""
    group = dist.group.WORLD
    for _ in range(20):
        tensors = [mine(50_000) for _ in range(5)]
        copied, bits = mine(100, 60), torch.full((5000,), 1 << dist.get_rank(), dtype=torch.int32)
        for tensor in (*tensors, copied.T[::2]):
            group.allreduce(tensor)
        dist.all_reduce(bits, dist.ReduceOp.BOR, async_op=True)
        dist.barrier()
        assert all(torch.equal(tensor, summed(50_000)) for tensor in tensors)
        assert torch.equal(copied.T[::2], summed(100, 60).T[::2])
        assert (bits == (1 << dist.get_world_size()) - 1).all()
    tensor = mine(50_000)
    group.allreduce(tensor)
    bits = torch.full((2_000_000,), 1 << dist.get_rank(), dtype=torch.int32)
    dist.all_reduce(bits, dist.ReduceOp.BOR, async_op=True)
    future = dist.barrier(async_op=True).get_future()
    future.wait()
    assert torch.equal(tensor, summed(50_000)) and (bits == (1 << dist.get_world_size()) - 1).all()


def case_two_threads() -> None:
    """Collectives of several threads keep one order on all ranks."""
    size, errors = dist.get_world_size(), []

    def reduce_ones() -> None:
        try:
            for _ in range(300):
                dist.all_reduce(tensor := torch.ones(10))
                assert (tensor == size).all(), tensor
        except Exception as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=reduce_ones) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors, errors


def case_call_between_number_and_name() -> None:
    """A thread whose call comes while another thread starts a collective has the next one."""
    first, second = torch.full((10,), float(dist.get_rank())), torch.ones(10)
    if dist.get_rank() == 0:
        blocking = threading.Thread(target=dist.all_reduce, args=(second,))
        name_of = InFlight.automatic_name

        def begin_the_other(in_flight: InFlight, *arguments: Any) -> str:
            if not blocking.ident:
                blocking.start()
                time.sleep(0.3)  # far longer than it needs to overtake
            return name_of(in_flight, *arguments)

        with mock.patch.object(InFlight, "automatic_name", begin_the_other):
            work = dist.all_reduce(first, async_op=True)
        work.wait()
        blocking.join()
    else:
        dist.all_reduce(first, async_op=True).wait()
        dist.all_reduce(second)
    size = dist.get_world_size()
    assert (first == sum(range(size))).all() and (second == size).all(), (first, second)


def case_all_to_all_again_and_again() -> None:
    """Python releases tensors while gloo's thread works: they do not wait for each other's locks."""
    size = dist.get_world_size()
    for number in range(3000):
        tensor = torch.full((size,), float(number))
        output = torch.empty(size)
        dist.all_to_all_single(output, tensor)
    assert torch.equal(output, torch.full((size,), 2999.0))


def case_short_forms() -> None:
    group = dist.group.WORLD
    tensor = mine(3)
    group.allreduce(tensor).wait()
    assert torch.equal(tensor, summed(3))
    tensor = mine(3)
    group.allreduce([tensor], dist.ReduceOp.MAX).wait()
    assert torch.equal(tensor, torch.stack(all_ranks(3)).amax(0))
    group.broadcast(tensor := mine(3), root=0).wait()
    assert torch.equal(tensor, of_rank(0, 3))
    parts = [torch.zeros(3) for _ in all_ranks(3)]
    group.allgather(parts, mine(3)).wait()
    assert all(map(torch.equal, parts, all_ranks(3)))
    group.barrier().wait()
