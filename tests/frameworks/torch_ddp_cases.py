"""DistributedDataParallel gives the parameters of one process on the whole batch."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
from frameworks.torch_ddp_training import assert_same_training, plain_loop, trained
from frameworks.torch_training import Checkpointed, Nested, Optimizer, Tied, data, mlp, my_share, sgd, small
from support.expect import expect_error
from torch import nn
from torch.utils.checkpoint import checkpoint

import byteps.torch as bps
from byteps.errors import InvalidArgumentError


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
        """Runs a nested backward pass, which ends long before the outer one."""

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
