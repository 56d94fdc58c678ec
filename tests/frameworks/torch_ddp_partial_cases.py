"""DistributedDataParallel on ranks that use different parameters, or different rows of one."""

from __future__ import annotations

import copy

import torch
from frameworks.torch_ddp_training import momentum, plain_loop, trained, trained_alone
from frameworks.torch_training import Words, assert_close, data, my_share, sgd
from torch import nn

import byteps.torch as bps


class Branches(nn.Module):
    """Uses different layers on each rank and in each step, and `never` in none."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.even, self.odd, self.never = (nn.Linear(6, 6) for _ in range(4))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.body(x))
        return self.head(x + self.even(x) if bps.rank() % 2 == 0 else x + self.odd(x))


class BranchesTogether(Branches):
    """The same in one process: each rank's part of the batch takes that rank's branch."""

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
        # So weight decay has not changed it, as in one process.
        assert got.never.weight.grad is None
        untouched = trained(Branches, plain_loop, (6,), lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
        assert untouched.never.weight.grad is None  # no rank has ever had one


def case_a_rank_without_backward_pass() -> None:
    torch.manual_seed(1)
    # With buffers to broadcast, and without.
    for layers in ([nn.Linear(2, 1)], [nn.BatchNorm1d(2), nn.Linear(2, 1)]):
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


class Extra(nn.Module):
    """Uses all parameters on rank 0, and not all on the others."""

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


class WordsOfEvenRanks(Words):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, bps.rank() % 2 == 0)


class WordsTogether(Words):
    """The same in one process: each rank's part of the batch uses what that rank uses."""

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
