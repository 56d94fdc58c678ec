"""CrossBarrier gives the same bits as the plain loop, for all models."""

from __future__ import annotations

import torch
from frameworks.torch_cross_barrier_training import (
    STEPS,
    Optimizer,
    Tensor,
    alone,
    assert_same_bits,
    crossed,
    plain,
    plain_loop,
    sgd,
    trained,
)
from frameworks.torch_training import Words, data, mlp, my_share
from support.expect import expect_error
from torch import nn
from torch.utils.checkpoint import checkpoint

import byteps.torch as bps
from byteps.errors import InvalidArgumentError


class Shared(nn.Module):
    """One parameter in two modules, one module called twice, and parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(torch.tanh(self.first(x * self.scale))))))


class Functional(nn.Module):
    """Modules that use parameters of other modules, before those' forward or without it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(6, 6, bias=False)
        self.never_called = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x + self.head.bias.sum())  # before head's own forward
        x = torch.tanh(nn.functional.linear(x, self.never_called.weight, self.never_called.bias))
        x = x @ nn.functional.normalize(self.table.weight)
        return self.head(self.table(x))


class Attention(nn.Module):
    """MultiheadAttention uses the weight of an inner module without calling the module."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, 8), nn.Linear(8, 3)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x.unsqueeze(-1))).mean(1))


class WithBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


def case_models() -> None:
    assert_same_bits(Shared)
    assert_same_bits(Functional)
    assert_same_bits(Functional, bucket_cap_mb=1e-6)
    assert_same_bits(Attention)
    assert_same_bits(Attention, bucket_cap_mb=1e-6)
    assert_same_bits(WithBuffers, one_process=False)
    assert_same_bits(Checkpointed)


class Alternating(nn.Module):
    """A layer that only every other step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.sometimes, self.never, self.head = (nn.Linear(6, 6) for _ in range(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.body(x)
        return self.head(torch.tanh(self.sometimes(x) if self.calls % 2 else x))[:, :3]


def case_parameters_not_always_used() -> None:
    assert_same_bits(Alternating, one_process=False)
    for name, value in trained(alone, Alternating)[1].items():
        got = trained(crossed, Alternating, find_unused_parameters=True)[1]
        assert torch.allclose(value, got[name], atol=1e-5), name


def case_sparse_gradients_are_made_dense() -> None:
    expected = trained(alone, lambda: Words(sparse=False))[1]
    for megabytes in (1e-6, 1):
        got = trained(crossed, Words, bucket_cap_mb=megabytes)[1]
        for name, value in expected.items():
            assert torch.allclose(value, got[name], atol=1e-5), name


def case_frozen_parameters_and_groups_added_later() -> None:
    def frozen() -> nn.Module:
        model = mlp()
        model[0].requires_grad_(False)
        return model

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = plain_loop(model, optimizer, x, y)
        if not model[0].weight.requires_grad:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.05})
        return loss

    def some(model: nn.Module) -> Optimizer:
        return torch.optim.SGD([*model[2].parameters(), *model[4].parameters()], lr=0.1, momentum=0.9)

    assert_same_bits(frozen, loop, some)

    def thawing(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = plain_loop(model, optimizer, x, y)
        model[0].requires_grad_(True)
        return loss

    assert_same_bits(frozen, thawing)


def case_compiled_submodules_and_model() -> None:
    def compiled_layers() -> nn.Module:
        model = mlp()
        for layer in model:
            layer.compile(backend="aot_eager")
        return model

    assert_same_bits(compiled_layers)

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        if not hasattr(optimizer, "compiled_model"):
            optimizer.compiled_model = torch.compile(model, backend="aot_eager")
        return plain_loop(optimizer.compiled_model, optimizer, x, y)

    assert_same_bits(loop=loop)
    torch._dynamo.reset()


def case_no_parameter_is_waited_for_too_early() -> None:
    """The first layer's forward begins while another rank holds back the last layer's gradient."""
    if bps.size() == 1:
        return
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = crossed(model, torch.optim.SGD(model.parameters(), lr=1.0), bucket_cap_mb=7e-5)
    plain_loop(model, optimizer, torch.ones(1, 4), torch.zeros(1, dtype=torch.long))
    optimizer.zero_grad()
    optimizer.flush()
    if bps.rank() == 0:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        before = model[1].weight.clone()
        model[0](torch.ones(1, 4))  # needs nothing of the last layer
        assert torch.equal(model[1].weight, before)
    else:
        # Hold back the last layer: its gradient comes only after rank 0 has said that it has gone
        # on.
        lazy = optimizer._lazy
        first, last = (lazy.bucket_of(layer.weight) for layer in model)
        assert first is not last
        send = lazy._send
        lazy._send = lambda bucket: None if bucket is last else send(bucket)
        model(torch.ones(1, 4)).sum().backward()
        del lazy._send
        assert first.is_in_flight and not last.is_in_flight
    bps.barrier()
    if bps.rank() != 0:
        optimizer.step()
    optimizer.flush()
    for parameter in model.parameters():
        assert torch.equal(parameter, bps.broadcast(parameter, 0))


def case_what_forward_needs_first_goes_first_after_the_first_quarter_of_backward() -> None:
    model = nn.Sequential(*[nn.Linear(20, 20, bias=False) for _ in range(8)])
    lazy = crossed(model, sgd(model))._lazy
    buckets = [lazy.bucket_of(layer.weight) for layer in model]
    assert [bucket.priority for bucket in buckets] == [-1, -2, -3, -4, -5, -6, 0, 0]
    waits_for_all = plain(model, sgd(model))
    assert {bucket.priority for bucket in waits_for_all._reducer._buckets} == {0}


def case_a_forward_pass_that_fails_is_forgotten() -> None:
    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        with expect_error(RuntimeError, "mat1 and mat2"):
            model(x[:, :5])
        hook = model[2].register_forward_pre_hook(lambda *_: torch.ones(1, 1))
        with expect_error(RuntimeError, "mat1 and mat2"):
            model(x)
        hook.remove()
        return plain_loop(model, optimizer, x, y)

    assert_same_bits(loop=loop)


def case_two_models_at_once() -> None:
    def two() -> tuple[list[nn.Module], list[Optimizer]]:
        torch.manual_seed(1)
        models = [mlp(), mlp()]
        return models, [sgd(model) for model in models]

    results = []
    for wrap in (plain, crossed):
        models, optimizers = two()
        optimizers = [wrap(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)]
        for number in range(STEPS):
            x, y = map(my_share, data(number))
            for optimizer in optimizers:
                optimizer.zero_grad()
            sum(nn.functional.cross_entropy(model(x), y) for model in models).backward()
            for optimizer in optimizers:
                optimizer.step()
        results.append([p.detach().clone() for model in models for p in model.parameters()])
    assert all(map(torch.equal, *results))


class UsedOutside(nn.Module):
    """The second and later forward passes use a parameter of a module that they do not call."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.body(x) if self.calls == 1 else nn.functional.linear(x, self.body.weight)
        return self.head(x)


def case_a_parameter_used_before_it_is_up_to_date_is_noticed() -> None:
    if bps.size() == 1:
        return  # one rank has nothing pending
    torch.manual_seed(1)
    model = UsedOutside()
    optimizer = crossed(model, sgd(model), bucket_cap_mb=1e-6)
    plain_loop(model, optimizer, *map(my_share, data(0)))
    with expect_error(InvalidArgumentError, "'body.weight' was used without", "optimizer.flush()"):
        plain_loop(model, optimizer, *map(my_share, data(1)))
    optimizer.flush()


def case_a_flush_makes_any_use_right() -> None:
    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        if hasattr(optimizer, "flush"):
            optimizer.flush()
        return plain_loop(model, optimizer, x, y)

    assert_same_bits(UsedOutside, loop, one_process=False)
