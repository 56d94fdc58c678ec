"""Operations of byteps.torch, beyond the conformance suite: layouts, autograd, broadcasts."""

from __future__ import annotations

import copy
import gc
import weakref

import torch
from frameworks.torch_compat_cases import *  # noqa: F403
from support.expect import expect_error
from support.waiting_objects import waiting_objects
from torch._subclasses.fake_tensor import FakeTensorMode

import byteps.torch as bps
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.torch.tensor import stage


def of_rank(rank: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-5, 6, shape, generator=generator).float()


def summed(*shape: int) -> torch.Tensor:
    return sum((of_rank(r, *shape) for r in range(bps.size())), torch.zeros(shape))


def mine(*shape: int) -> torch.Tensor:
    return of_rank(bps.rank(), *shape)


def case_layouts() -> None:
    expected = summed(4, 6, 2, 3)
    layouts = {
        "contiguous": lambda t: t,
        "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
        "permuted": lambda t: t.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        "gaps": lambda t: torch.stack((t, t), dim=-1)[..., 0],
        "offset": lambda t: torch.cat((t, t))[4:],
    }
    for name, lay_out in layouts.items():
        tensor = lay_out(mine(4, 6, 2, 3))
        assert torch.equal(bps.push_pull(tensor, name=f"{name}.new", op=bps.Sum), expected), name
        assert torch.equal(bps.push_pull(tensor, op=bps.Sum), expected), name
        assert torch.equal(tensor, mine(4, 6, 2, 3)), name
        strides = tensor.stride()
        assert bps.push_pull_inplace(tensor, name=f"{name}.inplace", op=bps.Sum) is tensor
        assert torch.equal(tensor, expected) and tensor.stride() == strides, name


def case_dense_tensors_are_not_copied() -> None:
    tensor = mine(4, 6, 2, 3)
    for dense in (tensor, tensor.contiguous(memory_format=torch.channels_last), tensor.mT):
        assert stage(dense).memory.data_ptr() == dense.data_ptr() and not stage(dense).copied
    for copied in (tensor[:, ::2], torch.ones(1).expand(3), torch._neg_view(tensor)):
        assert stage(copied).copied and torch.equal(stage(copied).memory, copied)


def case_ranks_that_differ_in_layout() -> None:
    tensor = mine(4, 6, 2, 3)
    if bps.rank() == 1:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    assert torch.equal(bps.push_pull(tensor, op=bps.Sum), summed(4, 6, 2, 3))
    assert torch.equal(bps.broadcast(tensor, 0, "layout"), of_rank(0, 4, 6, 2, 3))
    assert torch.equal(bps.broadcast_(tensor, 0, "layout"), of_rank(0, 4, 6, 2, 3))


def case_unsupported_tensors() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
    for tensor, error, advice in (
        (torch.ones(2, dtype=torch.bool), InvalidArgumentError, "torch.uint8"),
        (torch.ones(2, dtype=torch.complex64), InvalidArgumentError, "view_as_real"),
        (torch.ones(2, dtype=torch.int16), InvalidArgumentError, "torch.int16"),
        (torch.ones(2).to_sparse(), UnsupportedError, "to_dense"),
        (torch.ones(2, device="meta"), UnsupportedError, "meta"),
        (fake, UnsupportedError, "FakeTensor"),
        ([1.0], InvalidArgumentError, "list"),
    ):
        for function in (bps.push_pull_async, bps.push_pull_inplace, bps.push_pull_async_inplace):
            with expect_error(error, advice):
                function(tensor, name="unsupported")


def case_gradient_of_push_pull() -> None:
    for op, share in ((bps.Average, 1 / bps.size()), (bps.Sum, 1)):
        leaf = mine(3, 4).requires_grad_()
        reduced = bps.push_pull(leaf, name=f"gradient.{op.name}", op=op)
        assert torch.allclose(reduced, summed(3, 4) * share)
        (reduced * mine(3, 4)).sum().backward()
        assert torch.allclose(leaf.grad, summed(3, 4) * share)
    leaf = mine(3).requires_grad_()
    with expect_error(UnsupportedError, "op=Max"):
        bps.push_pull(leaf, name="gradient.max", op=bps.Max).sum().backward()


def case_second_derivative_of_push_pull() -> None:
    leaf = mine(3).double().requires_grad_()
    (gradient,) = torch.autograd.grad(
        (bps.push_pull(leaf, name="second", op=bps.Sum) ** 3).sum(), leaf, create_graph=True
    )
    gradient.sum().backward()
    assert torch.allclose(leaf.grad, 6 * bps.size() ** 2 * summed(3).double())


def case_gradient_of_a_grouped_push_pull() -> None:
    """Only tensors that require gradients get them; gradients of gradients work, too."""
    for op, share in ((bps.Sum, bps.size()), (bps.Average, 1)):
        leaves = [mine(3).requires_grad_(), mine(2, 2), mine(1).requires_grad_()]
        reduced = bps.grouped_push_pull(leaves, name=f"grouped.gradient.{op.name}", op=op)
        assert [r.requires_grad for r in reduced] == [True, True, True]
        (reduced[0].sum() + 3 * reduced[1].sum()).backward()
        assert torch.equal(leaves[0].grad, torch.full((3,), float(share))) and leaves[1].grad is None
        assert torch.equal(leaves[2].grad, torch.zeros(1))
    leaf = mine(3).requires_grad_()
    with expect_error(UnsupportedError, "op=Max"):
        bps.grouped_push_pull([leaf], name="grouped.max", op=bps.Max)[0].sum().backward()
    (squares,) = bps.grouped_push_pull([leaf.double() ** 3], op=bps.Sum)
    (gradient,) = torch.autograd.grad(squares.sum(), leaf, create_graph=True)
    gradient.sum().backward()
    assert torch.allclose(leaf.grad, 6 * bps.size() * mine(3))
    assert bps.grouped_push_pull([]) == []


def case_gradient_of_a_broadcast() -> None:
    """The root's gradient is the sum of all ranks': a broadcast model learns as in one process."""
    root = bps.size() - 1
    leaf = mine(3, 2).requires_grad_()
    copied = bps.broadcast(leaf, root, "gradient.broadcast")
    assert torch.equal(copied, of_rank(root, 3, 2)) and copied.requires_grad
    (copied * (bps.rank() + 1)).sum().backward()
    total = bps.size() * (bps.size() + 1) / 2
    assert torch.equal(leaf.grad, torch.full((3, 2), total if bps.rank() == root else 0.0))
    assert not bps.broadcast(mine(3), root).requires_grad
    assert not bps.synchronize(bps.broadcast_async(leaf, root)).requires_grad


def case_in_place_is_seen_by_autograd() -> None:
    leaf = mine(3).requires_grad_()
    saved = leaf * 1
    product = saved * saved
    bps.push_pull_inplace(saved, name="seen")
    with expect_error(RuntimeError, "modified by an inplace operation"):
        product.sum().backward()


def case_parameters_are_changed_in_place() -> None:
    parameter = torch.nn.Parameter(mine(3))
    assert bps.push_pull_inplace(parameter, False, "parameter") is parameter
    assert torch.equal(parameter.detach(), summed(3)) and parameter.requires_grad and parameter.is_leaf


def case_compression() -> None:
    for compression, tolerance in (
        (bps.Compression.none, 0),
        (bps.Compression.fp16, 1e-3),
        (bps.Compression.bf16, 1e-2),
    ):
        tensor = torch.linspace(1, 2, 100) * (1 + bps.rank())
        expected = torch.linspace(1, 2, 100) * sum(range(1, bps.size() + 1))
        name = compression.__name__
        reduced = bps.push_pull(tensor, False, name, compression=compression)
        assert reduced.dtype == torch.float32
        assert torch.allclose(reduced, expected, rtol=tolerance)
        whole = torch.arange(5)
        assert torch.equal(bps.push_pull(whole, False, "whole", compression=compression), whole * bps.size())


def case_bf16_is_summed_in_float32() -> None:
    tensor = torch.full((10,), 256.0 if bps.rank() == 0 else 1.0, dtype=torch.bfloat16)
    expected = torch.tensor(256.0 + bps.size() - 1).bfloat16()
    assert torch.equal(bps.push_pull(tensor, False, "bf16"), expected.expand(10))


def case_groups() -> None:
    tensors = [mine(size) for size in (1, 5, 0, 300)]
    sums = [summed(size) for size in (1, 5, 0, 300)]
    for name in ("group", None):
        reduced = bps.grouped_push_pull(tensors, False, name)
        assert all(map(torch.equal, reduced, sums))
        handle = bps.grouped_push_pull_async(tensors, False, name)
        assert all(map(torch.equal, bps.synchronize(handle), sums))
    assert all(map(torch.equal, bps.grouped_push_pull_inplace(tensors, name="group", op=bps.Sum), sums))
    assert all(map(torch.equal, tensors, sums))
    assert bps.grouped_push_pull([]) == []
    reduced = bps.grouped_push_pull([mine(3)], False, "half", compression=bps.Compression.fp16)
    assert reduced[0].dtype == torch.float32 and torch.equal(reduced[0], summed(3))


def case_names_of_horovod() -> None:
    assert torch.equal(bps.allreduce(mine(3), op=bps.Sum), summed(3))
    assert torch.allclose(bps.allreduce(mine(3), name="hvd"), summed(3) / bps.size())
    tensor = mine(3)
    assert bps.allreduce_(tensor, average=False) is tensor
    assert torch.equal(tensor, summed(3))
    assert torch.equal(bps.synchronize(bps.allreduce_async(mine(3), False)), summed(3))
    assert torch.equal(bps.synchronize(bps.allreduce_async_(mine(3), False)), summed(3))
    with expect_error(InvalidArgumentError, "either average or op"):
        bps.allreduce(mine(3), average=True, op=bps.Sum)


def case_byteps_push_pull_is_asynchronous_and_in_place() -> None:
    tensor = mine(3)
    handle = bps.byteps_push_pull(tensor, average=False, name="alias", version=0, priority=-3)
    assert bps.synchronize(handle) is tensor
    assert torch.equal(tensor, summed(3))


def case_declared_tensors() -> None:
    bps.declare("declared.by.name")
    bps.declare("declared.fully", mine(100))
    assert torch.equal(bps.push_pull(mine(100), False, "declared.fully"), summed(100))


def case_a_tensor_in_flight_outlives_its_handle() -> None:
    if bps.size() == 1:
        return  # one rank sends nothing
    tensor = mine(1000)
    alive = weakref.ref(tensor)
    if bps.rank() == 0:
        bps.push_pull_async_inplace(tensor, name="kept")
        del tensor
        gc.collect()
        assert alive() is not None  # the other ranks have not started theirs
    bps.barrier()
    if bps.rank() != 0:
        bps.push_pull_inplace(tensor, name="kept")


def case_compiled_code_can_push_pull() -> None:
    @torch.compile(backend="eager")
    def doubled_sum(tensor: torch.Tensor) -> torch.Tensor:
        return bps.push_pull(tensor * 2, name="compiled", op=bps.Sum) + 1

    leaf = mine(3).requires_grad_()
    result = doubled_sum(leaf)
    assert torch.equal(result, summed(3) * 2 + 1)
    result.sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 2.0 * bps.size()))


def case_broadcast_of_any_dtype() -> None:
    for dtype in (torch.bool, torch.int16, torch.complex64, torch.bfloat16, torch.float8_e4m3fn, torch.float64):
        tensor = mine(3, 4).to(dtype) if bps.rank() == 0 else torch.zeros(3, 4).to(dtype)
        result = bps.broadcast(tensor, 0, f"any.{dtype}")
        assert result.dtype == dtype
        assert torch.equal(result.view(torch.uint8), of_rank(0, 3, 4).to(dtype).view(torch.uint8))


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8, 2)
    )


def case_broadcast_parameters() -> None:
    root = bps.size() - 1
    for form in ("state_dict", "named_parameters", "list"):
        net = model(seed=bps.rank())
        net[1].num_batches_tracked.fill_(bps.rank())
        parts = {
            "state_dict": net.state_dict(),
            "named_parameters": net.named_parameters(),
            "list": list(net.parameters()),
        }
        bps.broadcast_parameters(parts[form], root)
        assert all(map(torch.equal, net.parameters(), model(seed=root).parameters())), form
        assert net[1].num_batches_tracked == (root if form == "state_dict" else bps.rank())
    # This is another "0.weight".
    bps.broadcast_parameters(torch.nn.Sequential(torch.nn.Linear(2, 2)).state_dict(), 0)
    if bps.size() > 1:
        other = {"same": torch.ones(1), "other": torch.ones(2 + bps.rank())}
        with expect_error(InvalidArgumentError, "'other' of torch.float32 [2]" if bps.rank() == 1 else "differ"):
            bps.broadcast_parameters(other, 0)
        with expect_error(InvalidArgumentError, "rank 0 has nothing more"):
            bps.broadcast_parameters([torch.ones(1)] * (1 + bps.rank()), 0)
    with expect_error(InvalidArgumentError, "'b'", "int"):
        bps.broadcast_parameters({"a": torch.ones(1), "b": 3}, 0)
    with expect_error(InvalidArgumentError, "root_rank is 9"):
        bps.broadcast_parameters({}, 9)
    with expect_error(InvalidArgumentError, "expected a state_dict"):
        bps.broadcast_parameters(torch.ones(3), 0)


def case_a_model_in_place_of_something_else() -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for call, part in (
        (lambda: bps.broadcast_parameters(net, 0), "broadcast_parameters(model.state_dict(), root_rank)"),
        (lambda: bps.broadcast_parameters(optimizer, 0), "broadcast_optimizer_state(optimizer, root_rank)"),
        (lambda: bps.broadcast_optimizer_state(net, 0), "broadcast_parameters(model.state_dict(), root_rank)"),
        (lambda: bps.DistributedOptimizer(net), "DistributedDataParallel(model)"),
        (lambda: bps.DistributedOptimizer(optimizer, net), "pass model.named_parameters()"),
        (lambda: bps.DistributedDataParallel(optimizer), "expected a module, got SGD"),
        (lambda: bps.CrossBarrier(optimizer, net), "a model and its optimizer, got SGD and Linear"),
    ):
        with expect_error(TypeError, part):
            call()


def case_broadcast_optimizer_state() -> None:
    makers = {
        "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
        "adam": lambda p, lr: torch.optim.Adam(p, lr=lr, amsgrad=True, betas=(0.8, 0.9)),
        "adamw": lambda p, lr: torch.optim.AdamW(p, lr=torch.tensor(lr), foreach=False),
        "lbfgs": lambda p, lr: torch.optim.LBFGS(p, lr=lr),
    }
    for name, make in makers.items():
        net = torch.nn.Linear(5, 3)
        bps.broadcast_parameters(net.state_dict(), 0)
        optimizer = make(net.parameters(), 0.1 if bps.rank() == 0 else 0.7)

        def closure(net: torch.nn.Module = net) -> torch.Tensor:
            net.zero_grad()
            loss = (net(torch.ones(2, 5)) ** 2).sum()
            loss.backward()
            return loss

        if bps.rank() == 0:
            optimizer.step(closure)  # only the root has state, as after a checkpoint
        bps.broadcast_parameters(net.state_dict(), 0)
        before = copy.deepcopy(net.state_dict())
        bps.broadcast_optimizer_state(optimizer, 0)
        assert all(map(torch.equal, before.values(), net.state_dict().values())), f"{name}: stepped"
        assert float(optimizer.param_groups[0]["lr"]) == float(torch.tensor(0.1) if name == "adamw" else 0.1)
        optimizer.step(closure)
        for parameter in net.parameters():
            assert torch.equal(parameter, bps.broadcast(parameter, 0)), name


def case_broadcast_optimizer_state_before_the_first_step() -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(
        torch.optim.Adam(net.parameters(), lr=0.1 + bps.rank()), net.named_parameters()
    )
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1 and not optimizer.state


def case_few_objects_wait() -> None:
    tensors = [torch.ones(8) for _ in range(100)]
    names = [f"waits.{index}" for index in range(100)]

    def start() -> list[bps.Handle]:
        return [bps.push_pull_async_inplace(tensor, name=name) for tensor, name in zip(tensors, names, strict=True)]

    assert waiting_objects(start, bps.synchronize) <= 5
