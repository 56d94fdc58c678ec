"""Imports and calls of programs that were written for BytePS and Horovod."""

from __future__ import annotations

from typing import Any

import torch
from frameworks.migration import check_page
from support.expect import expect_error

import byteps.torch as bps
import byteps.torch.cross_barrier as across
from byteps.common import BytePSBasics, check_extension, get_ext_suffix
from byteps.errors import InvalidArgumentError
from byteps.torch import ops
from byteps.torch.compression import Compressor, FP16Compressor, NoneCompressor
from byteps.torch.parallel import DistributedDataParallel


def mine(*shape: int) -> torch.Tensor:
    return torch.full(shape, bps.rank() + 1.0)


def total() -> float:
    return bps.size() * (bps.size() + 1) / 2


def model() -> torch.nn.Module:
    torch.manual_seed(bps.rank())
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def train(net: torch.nn.Module, optimizer: Any) -> None:
    generator = torch.Generator().manual_seed(bps.rank())
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.rand(5, 4, generator=generator)).square().mean().backward()
        optimizer.step()


def assert_alike(tensors: Any, name: str) -> None:
    for place, tensor in enumerate(tensors):
        assert torch.equal(tensor, bps.broadcast(tensor, 0, f"{name}.{place}")), name


def case_the_page_for_migration_is_true() -> None:
    check_page("byteps.torch")
    check_page("byteps.common")


def case_common() -> None:
    basics = BytePSBasics(__file__, "c_lib")
    basics.init()
    assert (basics.rank(), basics.size()) == (bps.rank(), bps.size())
    assert (basics.local_rank(), basics.local_size()) == (bps.local_rank(), bps.local_size())
    assert len(basics.get_pushpull_speed()) == 2
    assert get_ext_suffix().endswith(".so")
    check_extension("byteps.torch", "BYTEPS_WITH_PYTORCH", __file__, "c_lib")


def case_the_job_in_other_modules() -> None:
    for module in (ops, across):
        module.init()
        assert (module.rank(), module.size()) == (bps.rank(), bps.size())
    assert (bps.cross_rank(), bps.cross_size()) == (0, 1) and bps.is_homogeneous()
    built = [bps.mpi_built(), bps.gloo_built(), bps.nccl_built(), bps.cuda_built(), bps.mpi_threads_supported()]
    assert not any(built)


def case_cross_barrier_by_its_module() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    optimizer = across.CrossBarrier(net, optimizer, net.named_parameters(), across.Compression.none, 1, num_steps=2)
    across.broadcast_parameters(net.state_dict(), root_rank=0)
    across.broadcast_optimizer_state(optimizer, root_rank=0)
    train(net, optimizer)
    assert_alike(net.parameters(), "across")


def case_the_parallel_module() -> None:
    net = DistributedDataParallel(model(), device_ids=[bps.local_rank()], broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
    bps.broadcast_parameters(net.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    train(net, optimizer)
    assert_alike(net.parameters(), "parallel")


def case_positional_arguments() -> None:
    assert bps.push_pull(mine(2), False, "positional", 0, 0, bps.Compression.none).tolist() == [total()] * 2
    handle = bps.push_pull_async(mine(2), False, "positional async", 0, 3)
    assert bps.synchronize(handle).tolist() == [total()] * 2
    assert bps.declare("declared by name alone") is None
    net = model()
    for number, third in enumerate((net, "Prefix.", None)):
        optimizer = torch.optim.SGD(net.parameters(), 0.1 * (bps.rank() + 1 + number), momentum=0.5)
        bps.broadcast_optimizer_state(optimizer, 0, third)
        assert optimizer.param_groups[0]["lr"] == 0.1 * (1 + number)
    bps.broadcast_optimizer_state(optimizer, root_rank=0, model=net)


def case_the_model_where_something_else_belongs() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with expect_error(InvalidArgumentError, "got Sequential", "named_parameters=model.named_parameters()"):
        bps.DistributedOptimizer(net)
    with expect_error(InvalidArgumentError, "Sequential given", "state_dict"):
        bps.broadcast_parameters(net, root_rank=0)
    with expect_error(InvalidArgumentError, "expected an optimizer, got Sequential"):
        bps.broadcast_optimizer_state(net, root_rank=0)
    with expect_error(InvalidArgumentError, "expected a model and its optimizer, got SGD and Sequential"):
        bps.CrossBarrier(optimizer, net)
    with expect_error(InvalidArgumentError, "expected a module, got SGD"):
        bps.DistributedDataParallel(optimizer)
    with expect_error(InvalidArgumentError, "init([0, 1])", "new_group"):
        bps.init([0, 1])


class Halving:
    """A compressor with state: an instance, not a class."""

    def __init__(self) -> None:
        self.uses = 0

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        self.uses += 1
        return tensor / 2, None

    def decompress(self, tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        return tensor * 2


def case_compressor_instances() -> None:
    custom = Halving()
    for number, compressor in enumerate((bps.Compression.fp16(), NoneCompressor(), FP16Compressor(), custom)):
        reduced = bps.push_pull(mine(3), False, f"instance {number}", compression=compressor)
        assert reduced.tolist() == [total()] * 3 and reduced.dtype == torch.float32
        net = model()
        bps.broadcast_parameters(net.state_dict(), 0)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        train(net, bps.DistributedOptimizer(optimizer, net.named_parameters(), compressor))
        assert_alike(net.parameters(), f"instances {number}")
    assert custom.uses == 1 + 2 * 4 if bps.size() > 1 else custom.uses > 0
    assert isinstance(Compressor, object)
    with expect_error(InvalidArgumentError, "compression is 'fp16'"):
        bps.DistributedOptimizer(torch.optim.SGD(model().parameters(), 0.1), compression="fp16")


def case_synchronize_again() -> None:
    tensor = mine(3)
    handle = bps.push_pull_async_inplace(tensor, False, "again")
    assert bps.synchronize(handle) is bps.synchronize(handle) is tensor
    assert bps.poll(handle) and tensor.tolist() == [total()] * 3
    group = bps.grouped_push_pull_async([mine(1), mine(2)], False, "again in a group")
    first, second = bps.synchronize(group), bps.synchronize(group)
    assert all(a is b for a, b in zip(first, second, strict=True)) and bps.poll(group)


def case_dicts_in_another_order_on_each_rank() -> None:
    names = [f"weight {number}" for number in range(5)]
    if bps.rank() % 2:
        names.reverse()
    for give in (dict, list):
        tensors = {name: torch.full((3,), 10.0 * int(name[-1]) + bps.rank()) for name in names}
        bps.broadcast_parameters(give(tensors.items()), root_rank=0)
        assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
            name: [10.0 * int(name[-1])] * 3 for name in names
        }


def case_scale_factors() -> None:
    scales = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    expected = [2 * total()] * 3
    tensor = mine(3).requires_grad_()
    reduced = bps.allreduce(tensor, name="scaled", op=bps.Sum, **scales)
    reduced.sum().backward()
    assert reduced.tolist() == expected and tensor.grad.tolist() == [2.0 * bps.size()] * 3
    tensor = mine(3)
    assert bps.synchronize(bps.allreduce_async(tensor, None, "scaled async", bps.Sum, 0.5, 4.0)).tolist() == expected
    assert tensor.tolist() == mine(3).tolist()
    for number, start in enumerate((bps.allreduce_, lambda *args: bps.synchronize(bps.allreduce_async_(*args)))):
        tensor = mine(3)
        assert start(tensor, None, f"scaled in place {number}", bps.Sum, 0.5, 4.0) is tensor
        assert tensor.tolist() == expected
    whole = torch.full((2,), bps.rank() + 1)
    scaled = bps.allreduce(whole, name="scaled whole", op=bps.Sum, prescale_factor=3.0)
    assert scaled.dtype == torch.int64 and scaled.tolist() == [3 * total()] * 2
    with expect_error(InvalidArgumentError, "torch.int64", "0.5"):
        bps.allreduce_(whole, postscale_factor=0.5)
