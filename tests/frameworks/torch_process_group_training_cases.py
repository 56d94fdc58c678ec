"""Unmodified training on the backend byteps, compared with one process on the whole batch."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from frameworks.process_group import start_process_group
from support.expect import expect_error
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import byteps.torch as bps

STEPS = 3
BATCH = 24  # divisible by 1, 2 and 4 ranks, twice
EXACT, REDUCED = 1e-6, 3e-2  # float32, and bfloat16 in the middle
Wrap = Callable[[nn.Module], nn.Module]

# Groups of torch's own gloo. A thread of gloo drops a callback some time after the callback's
# future is done. If the callback has the last reference to the group, the thread destroys the
# group, joins itself, and the process ends by std::system_error.
_kept: list[dist.ProcessGroup] = []


def mlp() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


class WithUnused(nn.Module):
    """Uses one of its layers in every second step only."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.sometimes = mlp(), nn.Linear(4, 4)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        x = self.body(x)
        return self.sometimes(x) if self.step % 2 else x


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 6, generator=generator), torch.randint(0, 4, (BATCH,), generator=generator)


def share(batch: torch.Tensor) -> torch.Tensor:
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(
    model: nn.Module,
    part: Callable[[torch.Tensor], torch.Tensor],
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
) -> None:
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        x, y = map(part, data(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def whole(batch: torch.Tensor) -> torch.Tensor:
    return batch


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for wrapped_name, tensor in model.state_dict().items():
        name = wrapped_name.removeprefix("_orig_mod.").removeprefix("module.").removeprefix("_orig_mod.")
        found[name] = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found


def check(wrap: Wrap, make: Callable[[], nn.Module] = mlp, tolerance: float = EXACT, **options: object) -> nn.Module:
    """Trains `wrap(make())` on this rank's share, and `make()` on the whole batch."""
    start_process_group()
    alone, together = make(), wrap(make())
    train(alone, whole)
    train(together, share, **options)
    assert_equal(together, alone, tolerance)
    return together


def assert_equal(together: nn.Module, alone: nn.Module, tolerance: float = EXACT) -> None:
    got, expected = parameters(together), parameters(alone)
    assert got.keys() == expected.keys()
    for name, tensor in got.items():
        difference = (tensor.float() - expected[name].float()).abs().max().item()
        assert difference <= tolerance, (name, difference)


def case_the_powersgd_hook() -> None:
    """PyTorch's hook, on both backends: its callbacks wait for collectives that they start."""
    start_process_group()
    models = []
    for backend in ("byteps", "gloo"):
        group = dist.new_group(backend=backend)
        _kept.append(group)
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model = DistributedDataParallel(mlp(), process_group=group)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train(model, share)
        train(model, share)
        models.append(model)
        dist.destroy_process_group(group)
    assert_equal(*models, tolerance=1e-4)


def case_the_hooks_in_cpp() -> None:
    """DDP's built-in hooks equal gloo's, with several buckets; FP16_COMPRESS equals one process."""
    start_process_group()
    alone = mlp()
    train(alone, whole)
    for hook, tolerance in (
        (dist.BuiltinCommHookType.ALLREDUCE, EXACT),
        (dist.BuiltinCommHookType.FP16_COMPRESS, 1e-3),
    ):
        models = []
        for backend in ("byteps", "gloo"):
            group = dist.new_group(backend=backend)
            _kept.append(group)
            model = DistributedDataParallel(mlp(), process_group=group, bucket_cap_mb=0.0003)
            model._register_builtin_comm_hook(hook)
            train(model, share)
            models.append(model)
            dist.destroy_process_group(group)
        assert_equal(*models, tolerance=tolerance)
        assert_equal(models[0], alone, tolerance)


def case_a_wrong_reduction_would_be_seen() -> None:
    """Sums instead of averages exceed the tolerance."""
    start_process_group()
    if dist.get_world_size() == 1:
        return

    def wrap(model: nn.Module) -> nn.Module:
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(
            None,
            lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0]),
        )
        return ddp

    with expect_error(AssertionError):
        check(wrap)


def case_ddp() -> None:
    check(DistributedDataParallel)


def case_ddp_small_buckets() -> None:
    check(lambda model: DistributedDataParallel(model, bucket_cap_mb=0.0003))


def case_ddp_static_graph() -> None:
    check(lambda model: DistributedDataParallel(model, static_graph=True))


def case_ddp_gradient_as_bucket_view() -> None:
    check(lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True))


def case_ddp_find_unused_parameters() -> None:
    check(lambda model: DistributedDataParallel(model, find_unused_parameters=True), WithUnused)


def case_ddp_compiled() -> None:
    check(lambda model: torch.compile(DistributedDataParallel(model), backend="aot_eager"))
    check(lambda model: DistributedDataParallel(torch.compile(model, backend="aot_eager")))


def case_ddp_broadcasts_buffers() -> None:
    start_process_group()
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    ddp = DistributedDataParallel(model)
    model[1].running_mean.fill_(dist.get_rank() + 5)
    ddp.eval()(data(0)[0])
    assert bool((model[1].running_mean == 5).all())


def case_ddp_no_sync() -> None:
    start_process_group()
    alone, ddp = mlp(), DistributedDataParallel(mlp())
    optimizers = sgd(alone), sgd(ddp)
    for step in range(STEPS):
        x, y = data(step)
        for model, optimizer, part in ((alone, optimizers[0], whole), (ddp, optimizers[1], share)):
            optimizer.zero_grad()
            for half in range(2):
                context = ddp.no_sync() if model is ddp and half == 0 else nullcontext()
                with context:
                    xs, ys = (part(t.chunk(2)[half]) for t in (x, y))
                    (nn.functional.cross_entropy(model(xs), ys) / 2).backward()
            optimizer.step()
    assert_equal(ddp, alone)


def case_ddp_join_of_uneven_inputs() -> None:
    start_process_group()
    ddp = DistributedDataParallel(mlp())
    with ddp.join():
        for step in range(1 + dist.get_rank()):
            ddp(data(step)[0]).sum().backward()
    dist.barrier()


def case_ddp_on_a_mesh() -> None:
    start_process_group()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("replicas",))
    check(lambda model: DistributedDataParallel(model, device_mesh=mesh))


def case_zero_redundancy_optimizer() -> None:
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    start_process_group()
    alone, ddp = mlp(), DistributedDataParallel(mlp())
    train(alone, whole)
    train(ddp, share, optimizer)
    assert_equal(ddp, alone)


def sharded(model: nn.Module, **options: object) -> nn.Module:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def case_fsdp2() -> None:
    model = check(sharded)
    assert isinstance(model, FSDPModule)


def case_fsdp2_mixed_precision() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    check(lambda model: sharded(model, mp_policy=policy), tolerance=REDUCED)


def case_fsdp2_compiled() -> None:
    check(lambda model: torch.compile(sharded(model), backend="aot_eager"))


def case_hsdp() -> None:
    start_process_group()
    mesh = mesh_2d("replicate", "shard")
    check(lambda model: sharded(model, mesh=mesh))


def case_dtensor() -> None:
    start_process_group()
    mesh = DeviceMesh("cpu", list(range(dist.get_world_size())))
    torch.manual_seed(0)
    a, b = torch.randn(8, 12), torch.randn(12, 4)
    left, right = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Replicate()])
    assert torch.allclose((left @ right).full_tensor(), a @ b, atol=1e-6)
    left, right = distribute_tensor(a, mesh, [Shard(1)]), distribute_tensor(b, mesh, [Shard(0)])
    assert torch.allclose((left @ right).redistribute(placements=[Shard(0)]).full_tensor(), a @ b, atol=1e-5)


def case_tensor_parallel() -> None:
    start_process_group()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    alone = mlp()
    together = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for model in (alone, together):
        train(model, whole)
    assert_equal(together, alone)


def case_fsdp2_accumulates_gradients() -> None:
    start_process_group()
    alone, together = mlp(), sharded(mlp())
    optimizers = sgd(alone), sgd(together)
    for step in range(STEPS):
        x, y = data(step)
        for model, optimizer, part in ((alone, optimizers[0], whole), (together, optimizers[1], share)):
            optimizer.zero_grad()
            for half in range(2):
                if model is together:
                    together.set_requires_gradient_sync(half == 1)
                xs, ys = (part(t.chunk(2)[half]) for t in (x, y))
                (nn.functional.cross_entropy(model(xs), ys) / 2).backward()
            optimizer.step()
    assert_equal(together, alone)


def mesh_2d(*names: str) -> DeviceMesh:
    size = dist.get_world_size()
    return init_device_mesh("cpu", (2, size // 2) if size > 1 else (1, 1), mesh_dim_names=names)


def case_mesh_of_two_dimensions() -> None:
    start_process_group()
    mesh = mesh_2d("rows", "columns")
    ranks = torch.arange(dist.get_world_size()).view(mesh.shape)
    row, column = mesh.get_coordinate()
    for name, members in (("rows", ranks[:, column]), ("columns", ranks[row])):
        group = mesh.get_group(name)
        assert dist.get_process_group_ranks(group) == members.tolist()
        dist.all_reduce(tensor := torch.tensor(dist.get_rank()), group=group)
        assert tensor == members.sum()
    torch.manual_seed(0)
    expected = torch.randn(8, 12)
    tensor = distribute_tensor(expected, mesh, [Shard(0), Shard(1)])
    assert torch.equal(tensor.full_tensor(), expected)
    assert torch.equal(tensor.redistribute(placements=[Shard(1), Shard(0)]).full_tensor(), expected)
    assert torch.allclose(tensor.sum().full_tensor(), expected.sum(), atol=1e-5)


def case_fsdp2_of_tensor_parallel() -> None:
    start_process_group()
    mesh = mesh_2d("data", "tensor")
    layers = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    alone, together = mlp(), parallelize_module(mlp(), mesh["tensor"], layers)
    fully_shard(together, mesh=mesh["data"])
    train(alone, whole)
    train(together, lambda batch: batch.chunk(mesh["data"].size())[mesh["data"].get_local_rank()])
    assert_equal(together, alone)


def case_checkpoint_of_shards() -> None:
    """Parameters and optimizer state are loaded into a model that has trained on meanwhile."""
    start_process_group()
    model = sharded(mlp())
    optimizer = sgd(model)
    train(model, share, lambda _: optimizer)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    saved = copy.deepcopy(parameters(model))
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save(state, checkpoint_id=folder[0])
    train(model, share, lambda _: optimizer)
    trained_on = copy.deepcopy(parameters(model))
    fresh = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(fresh, checkpoint_id=folder[0])
    set_state_dict(model, optimizer, model_state_dict=fresh["model"], optim_state_dict=fresh["optimizer"])
    for name, tensor in parameters(model).items():
        assert torch.equal(tensor, saved[name]), name
    train(model, share, lambda _: optimizer)
    for name, tensor in parameters(model).items():  # momentum was restored, too
        assert torch.equal(tensor, trained_on[name]), name


def case_two_models_on_two_groups() -> None:
    start_process_group()
    groups = [dist.new_group(), dist.new_group()]
    models = [DistributedDataParallel(mlp(), process_group=group) for group in groups]
    alone = mlp()
    train(alone, whole)
    for model in models:
        train(model, share)
        assert_equal(model, alone)


def case_nothing_is_left_behind() -> None:
    dist.barrier()
    dist.destroy_process_group()
    (Path(tempfile.gettempdir()) / f"{os.environ['BYTEPS_JOB_ID']}.store").unlink(missing_ok=True)
    assert bps.is_initialized()
