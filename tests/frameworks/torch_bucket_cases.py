"""Buckets of several gradients."""

from __future__ import annotations

import torch
from frameworks.torch_training import (
    Optimizer,
    Step,
    assert_equal_on_all_ranks,
    assert_same_training,
    data,
    forward_backward,
    mlp,
    my_share,
    plain_step,
    sgd,
)
from support.expect import expect_error
from torch import nn

import byteps.torch as bps
from byteps.errors import InvalidArgumentError


def push_pulls_of_a_step(model: nn.Module, **options: object) -> int:
    """Returns the number of push_pulls of a second step: the first one has queries, too."""
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), **options)
    x, y = data(0)
    plain_step(model, optimizer, my_share(x), my_share(y), True)
    before = bps.metrics()["push_pulls"]
    plain_step(model, optimizer, my_share(x), my_share(y), True)
    return int(bps.metrics()["push_pulls"] - before)


def case_a_bucket_is_one_push_pull() -> None:
    if bps.size() == 1:
        return  # nothing is sent
    model = mlp()
    assert push_pulls_of_a_step(mlp()) == 6
    assert push_pulls_of_a_step(mlp(), groups=1) == 1
    assert push_pulls_of_a_step(mlp(), groups=2) == 2
    assert push_pulls_of_a_step(mlp(), num_groups=2) == 2
    assert push_pulls_of_a_step(mlp(), groups=0) == 6
    assert push_pulls_of_a_step(mlp(), bucket_bytes=1 << 20) == 1
    assert push_pulls_of_a_step(mlp(), bucket_bytes=600) == 3  # 384+64, 1024, 64+192+12
    weights, biases = ([p for name, p in model.named_parameters() if kind in name] for kind in ("weight", "bias"))
    assert push_pulls_of_a_step(model, groups=[weights, biases[:2]]) == 3  # one bias is in no group
    large = nn.Sequential(nn.Linear(6, 300), nn.Linear(300, 120), nn.Linear(120, 3))
    # The weight of 144 kB is not worth a copy.
    assert push_pulls_of_a_step(large, bucket_bytes=1 << 20) == 2
    model[0].requires_grad_(False)
    assert push_pulls_of_a_step(model, groups=1) == 1
    assert model[0].weight.grad is None


def case_gradients_are_views_of_the_bucket() -> None:
    if bps.size() == 1:
        return  # nothing is sent
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), groups=1)
    forward_backward(model, *data(0))
    storages = {parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert len(storages) == 1
    views = [parameter.grad for parameter in model.parameters()]
    optimizer.zero_grad(set_to_none=False)
    forward_backward(model, *data(0))
    assert all(parameter.grad is view for parameter, view in zip(model.parameters(), views, strict=True))


def case_zero_grad_that_keeps_the_views() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        optimizer.zero_grad(set_to_none=False)
        forward_backward(model, x, y)
        optimizer.step()

    for sync in ("auto", "step"):
        assert_same_training(step=step, groups=2, sync=sync)


def case_several_dtypes() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8).double(), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.third(self.second(torch.tanh(self.first(x)).double()).float())

    if bps.size() > 1:
        assert push_pulls_of_a_step(Mixed(), bucket_bytes=1 << 20) == 2
        assert push_pulls_of_a_step(Mixed(), groups=1) == 2
        mixed = Mixed()
        assert push_pulls_of_a_step(mixed, groups=[list(mixed.parameters())]) == 2
    assert_same_training(Mixed, bucket_bytes=1 << 20)


def case_channels_last() -> None:
    def cnn() -> nn.Module:
        layers = (nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(4 * 4 * 4, 3))
        return nn.Sequential(*layers).to(memory_format=torch.channels_last)

    assert_same_training(cnn, shape=(3, 8, 8), groups=2)


def case_compression() -> None:
    assert_same_training(compression=bps.Compression.fp16, tolerance=1e-3, groups=2)


def case_parameters_unfrozen_while_their_bucket_waits() -> None:
    def frozen() -> nn.Module:
        model = mlp()
        model[0].requires_grad_(False)
        return model

    def steps() -> Step:
        turns: dict[int, int] = {}

        def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
            turns[id(model)] = turn = turns.get(id(model), 0) + 1
            plain_step(model, optimizer, x, y, distributed)
            model[0].requires_grad_(turn != 2)  # trained in the second and the fourth step
            model[4].requires_grad_(turn == 2)

        return step

    for options in ({"groups": 1}, {"groups": 1, "sync": "step"}, {"groups": 3}):
        assert_same_training(frozen, step=steps(), **options)


def case_a_parameter_without_gradient_on_some_ranks() -> None:
    for sync in ("auto", "step"):
        model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
        for layer in model:
            nn.init.ones_(layer.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), groups=1, sync=sync)
        model[0 if bps.rank() == 0 else 1](torch.ones(1, 2)).sum().backward()
        optimizer.step()
        share = torch.tensor(1 / bps.size())
        assert torch.allclose(model[0].weight, 1 - share)
        if bps.size() > 1:
            assert torch.allclose(model[1].weight, share)
        assert_equal_on_all_ranks(model)


def case_a_parameter_that_no_rank_has_ever_used_is_left_alone() -> None:
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), groups=1)
    before = model[1].weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        model[0](torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert model[1].weight.grad is None
    assert torch.equal(model[1].weight, before)
    optimizer.zero_grad()
    if bps.rank() == 0:
        model[1](torch.ones(1, 2)).sum().backward()
    else:
        model[0](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(model[1].weight, before)
    assert torch.equal(model[1].weight, bps.broadcast(model[1].weight.detach(), 0))


def case_touched_in_flight() -> None:
    if bps.size() == 1:
        return  # one rank sends nothing
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), groups=1, sync="step")
    for touch in (
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
        lambda: model.zero_grad(set_to_none=False),
        model.zero_grad,
    ):
        forward_backward(model, *data(0))
        touch()
        with expect_error(InvalidArgumentError, "changed while it was in flight"):
            optimizer.step()


def case_wrong_groups() -> None:
    model = mlp()
    weight = model[0].weight
    for groups, part in (
        (-1, "groups is -1"),
        ("all", "groups is 'all'"),
        ([[weight], [weight]], "two groups"),
        ([[nn.Parameter(torch.ones(1))]], "not a parameter of the optimizer"),
        ([weight], "expected a list of parameters"),
    ):
        with expect_error(InvalidArgumentError, part):
            bps.DistributedOptimizer(sgd(model), model.named_parameters(), groups=groups)
    with expect_error(InvalidArgumentError, "give only one"):
        bps.DistributedOptimizer(sgd(model), model.named_parameters(), groups=2, bucket_bytes=100)
