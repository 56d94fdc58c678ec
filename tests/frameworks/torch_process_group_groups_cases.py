"""Process groups of the backend byteps: subgroups, many groups, other backends beside them."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from frameworks.process_group import gloo_group, mine, of_rank, start_process_group, summed
from support.expect import expect_error
from support.processes import open_files, thread_names

import byteps.torch as bps
from byteps.errors import InvalidArgumentError, NotInitializedError


def case_subgroups() -> None:
    """Overlapping groups with different orders of ranks reduce at the same time."""
    start_process_group()
    size = dist.get_world_size()
    if size < 2:
        return
    pairs = [[first, (first + 1) % size] for first in range(size)] if size > 2 else [[0, 1]]
    groups = [dist.new_group(sorted(pair)) for pair in pairs]
    works = []
    for pair, group in zip(pairs, groups, strict=True):
        if dist.get_rank() in pair:
            tensor = mine(3)
            works.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, pair))
    for work, tensor, pair in works:
        work.wait()
        assert torch.equal(tensor, sum(of_rank(rank, 3) for rank in pair))
    for pair, group in zip(pairs, groups, strict=True):
        if dist.get_rank() in pair:
            root = max(pair)
            dist.broadcast(tensor := mine(2), src=root, group=group)
            assert torch.equal(tensor, of_rank(root, 2))
            dist.barrier(group)
            dist.destroy_process_group(group)


def case_groups_use_gloo_at_the_same_time() -> None:
    """Each group has its own connections."""
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.group.WORLD, dist.new_group(), dist.new_group()]
    tensors = [mine(4, dtype=torch.int32) << number for number in range(len(groups))]
    works = [
        dist.all_reduce(t, dist.ReduceOp.BOR, group=g, async_op=True) for g, t in zip(groups, tensors, strict=True)
    ]
    for work in reversed(works):
        work.wait()
    assert all(torch.equal(tensor, tensors[0] << number) for number, tensor in enumerate(tensors))
    for group in groups[1:]:
        output = torch.zeros(size)
        dist.all_to_all_single(output, torch.full((size,), float(rank)), group=group)
        assert torch.equal(output, torch.arange(float(size)))
        dist.destroy_process_group(group)


def case_group_of_all_ranks_shares_the_job() -> None:
    threads = _bps_threads()
    group, other = dist.new_group(), dist.new_group()
    works = [dist.all_reduce(tensor, group=g, async_op=True) for g in (group, other) for tensor in (mine(3), mine(3))]
    for work in works:
        work.wait()
    assert all(torch.equal(work.result()[0], summed(3)) for work in works)
    assert _bps_threads() == threads
    prefixes = {group._channel.prefix, other._channel.prefix, dist.group.WORLD._channel.prefix}
    assert len(prefixes) == 3
    dist.destroy_process_group(group)
    again = dist.new_group()
    assert again._channel.prefix in prefixes  # prefixes are reused
    dist.all_reduce(tensor := mine(3), group=again)
    assert torch.equal(tensor, summed(3))
    dist.destroy_process_group(again)
    dist.destroy_process_group(other)


def case_group_of_one_rank() -> None:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    group = groups[dist.get_rank()]
    dist.all_reduce(tensor := mine(3), dist.ReduceOp.AVG, group=group)
    assert torch.equal(tensor, mine(3))
    dist.all_gather_into_tensor(whole := torch.zeros(3), mine(3), group=group)
    assert torch.equal(whole, mine(3))
    work = dist.all_reduce(tensor, group=group, async_op=True)
    assert torch.equal(work.get_future().wait()[0], mine(3))
    dist.destroy_process_group(group)


def case_many_groups_come_and_go() -> None:
    size = dist.get_world_size()
    if size < 3:
        return
    some = list(range(size - 1))

    def cycle(count: int) -> None:
        groups = [dist.new_group(some) for _ in range(count)]
        if dist.get_rank() in some:
            for group in groups:
                dist.all_reduce(tensor := mine(3), group=group)
                assert torch.equal(tensor, sum(of_rank(rank, 3) for rank in some))
            for group in groups:
                dist.destroy_process_group(group)

    cycle(2)
    gc.collect()
    dist.barrier()
    before = _threads_and_files()
    cycle(32)
    gc.collect()
    dist.barrier()
    after = _threads_and_files()
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


def case_a_destroyed_group_says_so() -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    with expect_error(NotInitializedError, "destroy_process_group"):
        group.allreduce([torch.ones(1)])


def case_first_collectives_of_groups_in_any_order() -> None:
    """Joining a group's job waits for ranks that wait for another group's ranks here."""
    if dist.get_world_size() < 3:
        return
    groups = {members: dist.new_group(list(range(members))) for members in (2, 3)}
    mine_in = [members for members in groups if dist.get_rank() < members]
    tensors = {members: mine(3) for members in groups}
    works = {
        members: dist.all_reduce(tensors[members], group=groups[members], async_op=True)
        for members in (mine_in if dist.get_rank() == 0 else reversed(mine_in))
    }
    for members in mine_in:
        future = works[members].get_future()
        works[members].wait()
        assert future.wait()[0] is tensors[members]
        assert torch.equal(tensors[members], sum(of_rank(rank, 3) for rank in range(members)))
        dist.destroy_process_group(groups[members])


def case_a_group_that_nobody_else_joins_can_be_destroyed() -> None:
    if dist.get_world_size() < 3:
        return
    group = dist.new_group([0, 1])
    if dist.get_rank() == 0:
        work = dist.all_reduce(mine(3), group=group, async_op=True)
        dist.destroy_process_group(group)
        with expect_error(NotInitializedError, "destroy_process_group"):
            work.wait()


def case_other_backends_beside() -> None:
    gloo = gloo_group()
    dist.all_reduce(tensor := mine(3), group=gloo)
    assert torch.equal(tensor, summed(3))
    dist.destroy_process_group(gloo)


def case_destroy_and_start_again() -> None:
    dist.barrier()
    dist.destroy_process_group()
    # The job did not belong to the group.
    assert bps.push_pull(torch.ones(3), False, "beside")[0] == bps.size()
    dist.init_process_group(
        "cpu:byteps,cuda:byteps",
        init_method=f"file://{_file('again')}",
        rank=bps.rank(),
        world_size=bps.size(),
    )
    dist.all_reduce(tensor := mine(3))
    assert torch.equal(tensor, summed(3))
    dist.barrier()
    dist.destroy_process_group()


def case_ranks_must_agree_with_init() -> None:
    if bps.size() == 1:
        return
    with expect_error(InvalidArgumentError, "byteps.init() made this process rank", "expected", "call init_process"):
        dist.init_process_group(
            "byteps",
            init_method=f"file://{_file('disagree')}",
            rank=bps.size() - 1 - bps.rank(),
            world_size=bps.size(),
            timeout=timedelta(seconds=20),
        )


def _file(name: str) -> str:
    return f"{tempfile.gettempdir()}/{os.environ['BYTEPS_JOB_ID']}.{name}"


def _bps_threads() -> int:
    return sum(name.startswith("bps-") for name in thread_names(os.getpid()))


def _threads_and_files() -> tuple[int, int]:
    files = [path for path in open_files(os.getpid()) if "socket" in path or "memfd" in path or "eventpoll" in path]
    return len(thread_names(os.getpid())), len(files)


def case_a_barrier_waits_for_the_all_reduce_of_another_thread() -> None:
    start_process_group()
    group, tensor = dist.group.WORLD, mine(1000)
    store = dist.PrefixStore("case_a_barrier", dist.distributed_c10d._get_default_store())
    if dist.get_rank() == 0 and dist.get_world_size() > 1:
        thread = threading.Thread(target=dist.all_reduce, args=(tensor,))
        thread.start()
        while not group._channel.waiting():
            time.sleep(0.001)
        barrier = dist.barrier(async_op=True)
        future = barrier.get_future()
        assert not barrier.is_completed() and not future.done()
        store.set("asked", "")
        barrier.wait()
        future.wait()
        assert torch.equal(tensor, summed(1000))
        thread.join()
        return
    if dist.get_world_size() > 1:
        store.get("asked")
    dist.all_reduce(tensor)
    dist.barrier()
