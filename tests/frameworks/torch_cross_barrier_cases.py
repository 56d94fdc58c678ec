"""CrossBarrier gives the same bits as the plain loop, for all optimizers and loops."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from frameworks.torch_cross_barrier_training import (
    OPTIMIZERS,
    STEPS,
    Optimizer,
    Tensor,
    assert_same_bits,
    crossed,
    plain_loop,
    sgd,
    trained,
)
from frameworks.torch_training import data, mlp, my_share
from support.expect import expect_error
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR

import byteps.torch as bps


def case_optimizers() -> None:
    for make in OPTIMIZERS.values():
        assert_same_bits(make_optimizer=make)


def case_buckets_of_every_size() -> None:
    for megabytes in (1e-6, 1e-3, 1):
        assert_same_bits(bucket_cap_mb=megabytes)


def case_schedulers() -> None:
    makers: dict[str, Callable[[Optimizer], object]] = {
        "step": lambda o: StepLR(o, 1, gamma=0.5),
        "one cycle": lambda o: OneCycleLR(o, 0.5, total_steps=STEPS + 1),  # momentum too
    }
    for make in makers.values():
        assert_same_bits(make_scheduler=make)
    tensor_rate = OPTIMIZERS["adamw tensor lr"]
    # It changes the tensor in place.
    assert_same_bits(make_optimizer=tensor_rate, make_scheduler=makers["step"])

    def scheduler_before(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = plain_loop(model, optimizer, x, y)
        optimizer.early.step()
        return loss

    def make(model: nn.Module) -> Optimizer:
        optimizer = sgd(model)
        optimizer.early = StepLR(optimizer, 1, gamma=0.5)  # wraps step before CrossBarrier does
        return optimizer

    assert_same_bits(loop=scheduler_before, make_optimizer=make)


def case_orders_of_the_loop() -> None:
    def zero_grad_before_backward(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def zero_grad_after_step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def zeros(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def by_the_model(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=bool(y[0]))
        return loss

    def never(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for loop in (zero_grad_before_backward, zero_grad_after_step, zeros, by_the_model, never):
        assert_same_bits(loop=loop)
        assert_same_bits(loop=loop, bucket_cap_mb=1e-6)


def case_gradient_accumulation() -> None:
    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = nn.functional.cross_entropy(model(part_x), part_y)
            loss.backward()
        optimizer.step()
        return loss

    def plain(model: nn.Module, optimizer: Optimizer, **options: object) -> Optimizer:
        return bps.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=2)

    losses, state = trained(plain, loop=loop)
    got_losses, got = trained(crossed, loop=loop, backward_passes_per_step=2)
    assert losses == got_losses and all(torch.equal(value, got[name]) for name, value in state.items())


def forward_without_gradient(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).sum()


def forward_in_inference_mode(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(x).sum().clone()


def forward_under_autocast(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return model(x).float().sum()


def weight_after_eval(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    model.eval()
    seen = model[2].weight.sum()
    model.train()
    return seen


LOOKS: tuple[Callable[[nn.Module, Optimizer, Tensor], Tensor], ...] = (
    forward_without_gradient,
    forward_in_inference_mode,
    forward_under_autocast,
    weight_after_eval,
    lambda model, optimizer, x: sum(parameter.sum() for parameter in model.parameters()),
    lambda model, optimizer, x: sum(value.sum() for value in model.state_dict().values()),
    lambda model, optimizer, x: sum(
        state["momentum_buffer"].sum() for _, state in sorted(optimizer.state_dict()["state"].items())
    ),
    lambda model, optimizer, x: copy.deepcopy(model)(x).sum(),
)


def case_looks_in_between() -> None:
    for look in LOOKS:

        def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, look: object = look) -> Tensor:
            plain_loop(model, optimizer, x, y)
            return look(model, optimizer, x)

        assert_same_bits(loop=loop)


def case_mixed_precision() -> None:
    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    assert_same_bits(loop=loop, one_process=False)


def case_clipping_and_scaler_after_synchronize() -> None:

    def clip(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        return loss

    def scale(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        if not hasattr(optimizer, "scaler"):
            optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler = optimizer.scaler
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        scaler.step(optimizer)
        scaler.update()
        return loss

    for loop in (clip, scale):
        assert_same_bits(loop=loop)
        assert_same_bits(loop=loop, make_optimizer=OPTIMIZERS["adamw fused"])

    def scaled_by_rank(x: Tensor) -> bool:
        return bool(bps.push_pull(x[0, 0], name="decision") > 0)

    assert_same_bits(loop=lambda *a: (clip if scaled_by_rank(a[2]) else plain_loop)(*a), one_process=False)


def case_compression() -> None:
    def plain(model: nn.Module, optimizer: Optimizer, **_: object) -> Optimizer:
        return bps.DistributedOptimizer(optimizer, model.named_parameters(), compression=bps.Compression.bf16)

    losses, state = trained(plain)
    got_losses, got = trained(crossed, compression=bps.Compression.bf16)
    assert losses == got_losses and all(torch.equal(value, got[name]) for name, value in state.items())


def case_last_step_is_complete_after_num_steps() -> None:
    torch.manual_seed(1)
    model = mlp()
    optimizer = crossed(model, sgd(model), num_steps=2)
    pending = []
    for number in range(2):
        plain_loop(model, optimizer, *map(my_share, data(number)))
        pending.append(optimizer._lazy.is_pending)
    assert pending == [bps.size() > 1, False]


def case_a_step_that_raises_is_not_the_last() -> None:
    class Moody(torch.optim.SGD):
        fails = False

        def step(self, closure: object = None) -> None:
            if self.fails:
                self.fails = False
                raise ValueError("out of luck")
            super().step()

    def make(model: nn.Module) -> Optimizer:
        sgd(model)  # now the step of the base class has hooks, too
        return Moody(model.parameters(), lr=0.1, momentum=0.9)

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        optimizer.flush()  # the rest of the step before does not raise
        optimizer.fails = True
        with expect_error(ValueError, "out of luck"):
            optimizer.step()
        assert [len(group["params"]) for group in optimizer.param_groups] == [6]
        return plain_loop(model, optimizer, x, y)

    torch.manual_seed(1)
    model = mlp()
    optimizer = crossed(model, make(model), per_parameter=True)
    x, y = data(0)
    losses = [plain_loop(model, optimizer, x, y).item()]
    losses += [loop(model, optimizer, x, y).item() for _ in range(STEPS)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.9 * losses[0], losses
