"""DistributedDataParallel, and the hook for torch's: they give the parameters of one process on the whole batch."""

from __future__ import annotations

import copy
import gc
import io
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from frameworks.torch_training import (
    STEPS,
    Checkpointed,
    Nested,
    Tied,
    Words,
    assert_close,
    data,
    mlp,
    my_share,
    sgd,
    small,
)
from support.expect import expect_error
from torch import nn
from torch.utils.checkpoint import checkpoint

import byteps.torch as bps
from byteps.errors import InvalidArgumentError, NotFiniteError

Optimizer = torch.optim.Optimizer
Loop = Callable[[nn.Module, Optimizer, torch.Tensor, torch.Tensor], None]


def plain_loop(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def momentum(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def trained(
    make_model: Callable[[], nn.Module],
    loop: Loop,
    shape: tuple[int, ...],
    make_optimizer: Callable[[nn.Module], Optimizer],
    **options: object,
) -> nn.Module:
    torch.manual_seed(1 + bps.rank())
    model = bps.DistributedDataParallel(make_model(), **options)
    optimizer = make_optimizer(model)
    for number in range(STEPS):
        x, y = data(number, shape)
        loop(model, optimizer, my_share(x), my_share(y))
    return model.module


def trained_alone(
    make_model: Callable[[], nn.Module],
    loop: Loop,
    shape: tuple[int, ...],
    make_optimizer: Callable[[nn.Module], Optimizer],
) -> nn.Module:
    torch.manual_seed(1)
    model = make_model()
    optimizer = make_optimizer(model)
    for number in range(STEPS):
        loop(model, optimizer, *data(number, shape))
    return model


def assert_same_training(
    make_model: Callable[[], nn.Module] = mlp,
    loop: Loop = plain_loop,
    shape: tuple[int, ...] = (6,),
    tolerance: float = 1e-6,
    make_optimizer: Callable[[nn.Module], Optimizer] = momentum,
    loop_alone: Loop | None = None,
    **options: object,
) -> None:
    expected = trained_alone(make_model, loop_alone or loop, shape, make_optimizer)
    assert_close(expected, trained(make_model, loop, shape, make_optimizer, **options), tolerance)
    torch.manual_seed(1)
    assert any(
        (a - b).abs().max() > 1e-3 for a, b in zip(make_model().parameters(), expected.parameters(), strict=True)
    )


def case_buckets_of_every_size() -> None:
    for megabytes in (1e-6, 1e-4, 25):
        assert_same_training(bucket_cap_mb=megabytes)


def case_channels_last_and_mixed_dtypes() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
            self.middle = nn.Linear(8 * 36, 5).double()
            self.head = nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.middle(self.conv(x).flatten(1).double())).float())

    assert_same_training(Mixed, shape=(3, 8, 8))
    assert_same_training(Mixed, shape=(3, 8, 8), bucket_cap_mb=1e-5)


def case_clipping_and_scaler_unmodified() -> None:

    def loop(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        if not hasattr(optimizer, "scaler"):
            optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler = optimizer.scaler
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.05
        scaler.step(optimizer)
        scaler.update()

    assert_same_training(loop=loop)


def case_accumulation_without_sync() -> None:
    def together(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        parts = list(zip(x.chunk(3), y.chunk(3), strict=True))
        with model.no_sync():
            for part in parts[:2]:
                nn.functional.cross_entropy(model(part[0]), part[1]).backward()
            before = model.module[0].weight.grad.clone()
        assert bps.size() == 1 or not torch.equal(before, bps.push_pull(before, name="before"))
        nn.functional.cross_entropy(model(parts[2][0]), parts[2][1]).backward()
        optimizer.step()

    def alone(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        (3 * nn.functional.cross_entropy(model(x), y)).backward()
        optimizer.step()

    assert_same_training(loop=together, loop_alone=alone)


def case_several_backward_passes_that_all_synchronize() -> None:
    def loop(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(2), y.chunk(2), strict=True):
            nn.functional.cross_entropy(model(part_x), part_y).backward()
        optimizer.step()

    def alone(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        (2 * nn.functional.cross_entropy(model(x), y)).backward()
        optimizer.step()

    assert_same_training(loop=loop, loop_alone=alone)


class Branches(nn.Module):
    """Which of its layers take part depends on the rank and the step; `never` does not."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.even, self.odd, self.never = (nn.Linear(6, 6) for _ in range(4))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.body(x))
        return self.head(x + self.even(x) if bps.rank() % 2 == 0 else x + self.odd(x))


class BranchesTogether(Branches):
    """In one process: each rank's part of the batch takes that rank's branch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.body(x))
        parts = x.chunk(bps.size())
        return self.head(torch.cat([p + (self.odd(p) if r % 2 else self.even(p)) for r, p in enumerate(parts)]))


def case_unused_parameters() -> None:
    expected = trained_alone(BranchesTogether, plain_loop, (6,), momentum)
    for bucket_cap_mb in (1e-6, 1):
        options = {"bucket_cap_mb": bucket_cap_mb, "find_unused_parameters": True}
        got = trained(Branches, plain_loop, (6,), momentum, **options)
        assert_close(expected, got)
        assert got.never.weight.grad is None  # as in one process: weight decay has left it alone
        untouched = trained(Branches, plain_loop, (6,), lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
        assert untouched.never.weight.grad is None  # no rank has ever had one


def case_a_rank_without_backward_pass() -> None:
    torch.manual_seed(1)
    for layers in ([nn.Linear(2, 1)], [nn.BatchNorm1d(2), nn.Linear(2, 1)]):  # the others broadcast buffers, or not
        model = bps.DistributedDataParallel(nn.Sequential(*layers))
        alone = copy.deepcopy(model.module)
        x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
        alone(x)[0].backward()
        for _ in range(2):
            model.zero_grad()
            if bps.rank() == 0:
                model(x)[0].backward()
            else:
                model.synchronize()
            assert torch.allclose(model.module[-1].weight.grad, alone[-1].weight.grad / bps.size())


def case_frozen_and_late_unfrozen_parameters() -> None:
    def frozen() -> nn.Module:
        model = mlp()
        model[0].requires_grad_(False)
        return model

    def loop(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        plain_loop(model, optimizer, x, y)
        optimizer.steps = getattr(optimizer, "steps", 0) + 1
        getattr(model, "module", model)[0].requires_grad_(optimizer.steps > 1)

    assert_same_training(frozen, loop)


def case_shared_parameters_and_checkpointing() -> None:
    class Reentrant(nn.Module):
        """A backward pass within the backward pass, which ends long before."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.body, self.head = nn.Linear(6, 6), mlp(), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(checkpoint(self.body, self.first(x), use_reentrant=True))

    assert_same_training(Tied)
    assert_same_training(lambda: Checkpointed(use_reentrant=False))
    assert_same_training(Reentrant)
    if bps.size() > 1:
        with expect_error(InvalidArgumentError, "use_reentrant"):
            trained(Nested, plain_loop, (6,), sgd)


def case_compiled() -> None:

    def loop(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        if not hasattr(optimizer, "compiled_model"):
            optimizer.compiled_model = torch.compile(model, backend="aot_eager")
        plain_loop(optimizer.compiled_model, optimizer, x, y)

    assert_same_training(small, loop)
    torch._dynamo.reset()


def case_compiled_autograd() -> None:
    compiler = torch.compile(backend="eager")

    def loop(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        together = isinstance(model, bps.DistributedDataParallel)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        with torch._dynamo.compiled_autograd._enable(compiler) if together else nullcontext():
            loss.backward()
        optimizer.step()

    assert_same_training(small, loop)

    def with_unused() -> nn.Module:
        model = small()
        model.unused = nn.Parameter(torch.ones(3))
        return model

    assert_same_training(with_unused, loop, find_unused_parameters=True)
    torch._dynamo.reset()


class Extra(nn.Module):
    """Whose every parameter takes part on rank 0, and on no other."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.extra = nn.Linear(6, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * (self.extra if bps.rank() == 0 else 1.0)


def case_compiled_autograd_whose_end_only_some_ranks_notice() -> None:
    model = bps.DistributedDataParallel(Extra(), bucket_cap_mb=1e-6)
    for number in range(2):
        model.zero_grad()
        loss = model(my_share(data(number)[0])).sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()
        model.synchronize()
        for parameter in model.parameters():
            assert torch.equal(parameter.grad, bps.broadcast(parameter.grad, 0))
    torch._dynamo.reset()


def case_compression() -> None:
    assert_same_training(compression=bps.Compression.fp16, tolerance=1e-3)
    assert_same_training(compression=bps.Compression.bf16, tolerance=1e-2)
    assert_same_training(compression=bps.Compression.bf16, tolerance=1e-2, bucket_cap_mb=1e-6)


def case_several_instances_at_once() -> None:
    torch.manual_seed(1)
    alone = [mlp(), mlp()]
    models = [bps.DistributedDataParallel(copy.deepcopy(model)) for model in alone]
    x, y = data(0)
    sum(nn.functional.cross_entropy(model(my_share(x)), my_share(y)) for model in models).backward()
    sum(nn.functional.cross_entropy(model(x), y) for model in alone).backward()
    for one, other in zip(alone, models, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.allclose(a.grad, b.grad, atol=1e-6)


def differs(buffer: torch.Tensor) -> bool:
    """Whether any rank has another one; asked by all ranks."""
    here = not torch.equal(buffer, bps.broadcast(buffer, 0, f"differs.{buffer.numel()}"))
    return bool(bps.push_pull(torch.tensor(float(here)), name="differs", op=bps.Max))


def case_buffers_are_those_of_rank_0_before_each_forward_in_training() -> None:
    model = bps.DistributedDataParallel(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    norm = model.module[1]
    norm.momentum = 0.0  # forward only counts
    norm.running_mean.fill_(bps.rank())
    norm.num_batches_tracked.fill_(5 + bps.rank())
    x = my_share(data(0)[0])
    several = bps.size() > 1
    with model.no_sync():
        model(x)
    model.eval()
    model(x)
    assert differs(norm.running_mean) == several
    model.train()
    model(x)
    assert torch.equal(norm.running_mean, torch.zeros(3)) and norm.num_batches_tracked == 7


def case_buffers_can_be_left_alone() -> None:
    model = bps.DistributedDataParallel(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), broadcast_buffers=False)
    for number in range(2):
        model(my_share(data(number)[0]))
    assert differs(model.module[1].running_mean) == (bps.size() > 1)


def case_evaluation_of_one_rank_alone() -> None:
    model = bps.DistributedDataParallel(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))).eval()
    if bps.rank() == 0:
        with torch.no_grad():
            model(data(0)[0])


def case_a_gradient_of_inputs_sends_nothing() -> None:
    model = bps.DistributedDataParallel(mlp())
    x = torch.ones(2, 6, requires_grad=True)
    if bps.rank() == 0:
        (gradient,) = torch.autograd.grad(model.eval()(x).sum(), x)
        assert gradient.any() and model.module[0].weight.grad is None


def case_an_output_that_is_a_parameter_gets_no_hooks() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.table

    model = bps.DistributedDataParallel(Table())
    for _ in range(2):
        model.zero_grad()
        (model() * (bps.rank() + 1)).sum().backward()
        assert torch.equal(model.table.grad, torch.full((3,), (bps.size() + 1) / 2))
    assert not model.table._backward_hooks


def case_it_is_transparent() -> None:
    module = mlp()
    module.note = "mine"
    model = bps.DistributedDataParallel(module, device_ids=None)
    assert model.module is module and model.note == "mine" and "note" not in vars(model)
    with expect_error(AttributeError, "nothing"):
        _ = model.nothing
    state = model.state_dict()
    assert set(state) == {f"module.{name}" for name in module.state_dict()}
    for loaded in (state, module.state_dict()):
        other = bps.DistributedDataParallel(mlp())
        other.load_state_dict({name: value + 1 for name, value in loaded.items()})
        assert torch.equal(other.module[0].weight, module[0].weight + 1)
    bare = mlp()
    bare.load_state_dict(module.state_dict())
    with expect_error(RuntimeError, "Missing key"):
        model.load_state_dict({"module.0.weight": module[0].weight})


def case_copies_and_pickles_train_too() -> None:
    torch.manual_seed(1 + bps.rank())
    original = bps.DistributedDataParallel(mlp())
    plain_loop(original, sgd(original), *map(my_share, data(0)))
    file = io.BytesIO()
    torch.save(original, file)
    file.seek(0)
    for model in (copy.deepcopy(original), torch.load(file, weights_only=False)):
        alone = copy.deepcopy(model.module)
        plain_loop(model, sgd(model), *map(my_share, data(1)))
        plain_loop(alone, sgd(alone), *data(1))
        assert_close(alone, model.module)
        assert not torch.equal(model.module[0].weight, original.module[0].weight)


def case_it_can_be_collected() -> None:
    model = bps.DistributedDataParallel(mlp())
    alive = [weakref.ref(model.module[0].weight), weakref.ref(model)]
    plain_loop(model, sgd(model), *map(my_share, data(0)))
    del model
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def case_a_backward_pass_that_fails_is_forgotten() -> None:
    def loop(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
        def fail(_: torch.Tensor) -> None:
            raise ValueError("out of luck")

        output = getattr(model, "module", model)[0].weight
        hook = output.register_hook(fail)
        with expect_error(ValueError, "out of luck"):
            nn.functional.cross_entropy(model(x), y).backward()
        hook.remove()
        plain_loop(model, optimizer, x, y)

    assert_same_training(loop=loop)
    assert_same_training(loop=loop, bucket_cap_mb=1e-6)


def case_wrong_use() -> None:
    with expect_error(InvalidArgumentError, "no parameter"):
        bps.DistributedDataParallel(nn.Linear(2, 2).requires_grad_(False))
    with expect_error(InvalidArgumentError, "device_ids", "one device"):
        bps.DistributedDataParallel(mlp(), device_ids=[0, 1])
    with expect_error(InvalidArgumentError, "bucket_cap_mb is 0"):
        bps.DistributedDataParallel(mlp(), bucket_cap_mb=0)
    if bps.size() == 1:
        return
    for other in (nn.Linear(2 + bps.rank(), 2), nn.Linear(2, 2).requires_grad_(bps.rank() == 0)):
        with expect_error(InvalidArgumentError, "DistributedDataParallel", "differ"):
            bps.DistributedDataParallel(nn.ModuleList([nn.Linear(1, 1), other]))
    table = nn.Parameter(torch.ones(10, 3))  # of no nn.Embedding, so that nothing tells that its gradient is sparse
    model = bps.DistributedDataParallel(Lookup(table))
    with expect_error(InvalidArgumentError, "shares a bucket", "sparse_as_dense=True"):
        model(torch.tensor([1])).sum().backward()


class Lookup(nn.Module):
    def __init__(self, table: nn.Parameter) -> None:
        super().__init__()
        self.table, self.other = table, nn.Parameter(torch.ones(3))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(indices, self.table, sparse=True) * self.other


class WordsOfEvenRanks(Words):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, bps.rank() % 2 == 0)


class WordsTogether(Words):
    """In one process: each rank's part of the batch uses what that rank uses."""

    def __init__(self) -> None:
        super().__init__(sparse=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.chunk(bps.size())
        return torch.cat([super(WordsTogether, self).forward(part, r % 2 == 0) for r, part in enumerate(parts)])


def case_sparse_gradients() -> None:
    expected = trained_alone(WordsTogether, plain_loop, (6,), sgd)
    for options in ({}, {"find_unused_parameters": True, "nan_check": True}, {"sparse_as_dense": True}):
        got = trained(WordsOfEvenRanks, plain_loop, (6,), sgd, **options)
        assert_close(expected, got)
        assert got.table.weight.grad.is_sparse == ("sparse_as_dense" not in options)
        assert (got.other.weight - trained_alone(WordsTogether, lambda *_: None, (6,), sgd).other.weight).any()


def case_sparse_gradients_that_add_up() -> None:
    model = bps.DistributedDataParallel(nn.Embedding(10, 2, sparse=True))
    with torch.no_grad():
        model.module.weight.zero_()
    with model.no_sync():
        model(torch.tensor([bps.rank()])).sum().backward()
    for _ in range(2):
        model(torch.tensor([9])).sum().backward()  # sent twice: the average of averages
    expected = torch.zeros(10, 2)
    expected[: bps.size()] = 1 / bps.size()
    expected[9] = 2
    assert torch.allclose(model.module.weight.grad.to_dense(), expected)


def case_nan_check() -> None:
    last = bps.size() - 1
    model = bps.DistributedDataParallel(mlp(), nan_check=True)
    loss = model(torch.ones(1, 6)).sum() * (torch.nan if bps.rank() == last else 1.0)
    with expect_error(NotFiniteError, "4.weight'", f"on rank {last}. "):
        loss.backward()
    model.zero_grad()
    model(torch.ones(1, 6)).sum().backward()


def case_nan_check_forgets_a_backward_pass_that_fails() -> None:
    def fail(_: torch.Tensor) -> None:
        raise ValueError("out of luck")

    model = bps.DistributedDataParallel(mlp(), bucket_cap_mb=1e-6, nan_check=True)
    hook = model.module[0].weight.register_hook(fail)
    with expect_error(ValueError, "out of luck"):
        (model(torch.ones(1, 6)).sum() * torch.nan).backward()
    hook.remove()
    model.zero_grad()
    model(torch.ones(1, 6)).sum().backward()


def case_gradients_that_are_kept_over_steps() -> None:
    """zero_grad lets them go; what has them still, has them unchanged unless gradient_as_bucket_view is asked for."""
    for views in (False, True):
        model = bps.DistributedDataParallel(mlp(), gradient_as_bucket_view=views)
        kept, copies = [], []
        for number in range(3):
            model.zero_grad()
            model(data(number)[0]).sum().backward()
            kept.append(model.module[0].weight.grad)
            copies.append(kept[-1].clone())
        if bps.size() > 1:
            assert all(map(torch.equal, kept, copies)) != views


@contextmanager
def process_group(backend: str = "gloo") -> Iterator[None]:
    folder = bps.broadcast_object(tempfile.mkdtemp() if bps.rank() == 0 else "")
    store = dist.FileStore(str(Path(folder) / "store"), bps.size())
    dist.init_process_group(backend, store=store, rank=bps.rank(), world_size=bps.size())
    try:
        yield
    finally:
        dist.destroy_process_group()


def trained_by_torch(state: object, hook: bool = True, **options: object) -> nn.Module:
    torch.manual_seed(1 + bps.rank())
    model = nn.parallel.DistributedDataParallel(mlp(), **options)
    if hook:
        model.register_comm_hook(state, bps.ddp_hook)
    optimizer = momentum(model)
    for number in range(STEPS):
        plain_loop(model, optimizer, *map(my_share, data(number)))
    return model.module


def case_hook_of_torch_ddp() -> None:
    expected = trained_alone(mlp, plain_loop, (6,), momentum)
    before = bps.metrics()["push_pulls"]
    with process_group():
        assert_close(expected, trained_by_torch(None))
        assert bps.metrics()["push_pulls"] >= before + STEPS
        small_buckets = {"bucket_cap_mb": 1e-4, "gradient_as_bucket_view": True}
        assert_close(expected, trained_by_torch(bps.DDPHookState("views"), **small_buckets))
        assert_close(expected, trained_by_torch(bps.DDPHookState("static"), static_graph=True))
        for compression, tolerance in ((bps.Compression.fp16, 1e-3), (bps.Compression.bf16, 1e-2)):
            state = bps.DDPHookState("compressed", compression)
            assert_close(expected, trained_by_torch(state), tolerance)


def case_wrong_use_of_the_hook() -> None:
    with process_group(), expect_error(InvalidArgumentError, "expected a DDPHookState"):
        trained_by_torch("fp16")
