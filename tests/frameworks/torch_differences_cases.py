"""Ranks that differ in weights or hyperparameters when they begin to train."""

from __future__ import annotations

import torch
from frameworks.torch_training import data, forward_backward, mlp, sgd
from support.expect import expect_error
from support.said import Said
from torch import nn

import byteps.torch as bps
from byteps.errors import InvalidArgumentError
from byteps.torch.values import sums_of


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for number in range(steps):
        forward_backward(model, *data(number))
        optimizer.step()
        optimizer.zero_grad()


def case_ranks_that_begin_with_other_weights_are_told_so() -> None:
    """One warning at the first step; none if weights are broadcast after the optimizer is made."""
    last = bps.size() - 1
    for broadcasts, options in ((False, {}), (True, {}), (False, {"groups": 2}), (False, {"sync": "step"})):
        torch.manual_seed(3 + (bps.rank() == last))
        model = mlp()
        optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), **options)
        if broadcasts:
            bps.broadcast_parameters(model.state_dict(), 0)
        with Said() as lines:
            train(model, optimizer)
        told = not broadcasts and bps.rank() in (0, last) and last > 0
        assert [f"the weights of rank {last} are not those of rank 0" in line for line in lines] == [True] * told, lines
        assert all("broadcast" in line and "BYTEPS_DIFFERENCES" in line for line in lines)


def case_ranks_with_other_learning_rates_are_told_so() -> None:
    last = bps.size() - 1
    for crosses in (False, True):
        for setting in ("warn", "error", "ignore"):
            torch.manual_seed(3)
            model = mlp()
            plain = torch.optim.SGD(model.parameters(), lr=0.5 if bps.rank() == last else 0.25)
            optimizer = bps.CrossBarrier(model, plain) if crosses else bps.DistributedOptimizer(plain)
            with Said(setting) as lines:
                if setting == "error" and last > 0:
                    with expect_error(
                        InvalidArgumentError, "rank 0 has lr=0.25 in group 0", f"rank {last} having lr=0.5"
                    ):
                        train(model, optimizer)
                    assert torch.equal(model[0].weight, bps.broadcast(model[0].weight, 0))
                    continue
                train(model, optimizer)
            told = setting == "warn" and bps.rank() in (0, last) and last > 0
            assert ["lr=0.25" in line and "lr=0.5" in line for line in lines] == [True] * told, lines


def case_weights_of_all_kinds_are_compared() -> None:
    """One differing bit is found in every dtype and layout."""
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]
    for dtype in kinds:
        for tensor in (torch.ones(5, 3), torch.ones(4, 2), torch.ones(3, 5).mT, torch.ones(6)[1:], torch.ones(1)):
            one, same, other = (tensor.to(dtype, copy=True) for _ in range(3))
            other[..., -1:] += 0.5
            assert sums_of([one]) == sums_of([same]) != sums_of([other]), (dtype, tensor.shape)
    assert sums_of([torch.empty(0), torch.ones(2, device="meta")]) == [0, 0]
