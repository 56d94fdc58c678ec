"""Sparse gradients: rows of embeddings, gathered from all ranks."""

from __future__ import annotations

from contextlib import suppress

import torch
from frameworks.torch_training import assert_equal_on_all_ranks, my_share
from support.expect import expect_error
from torch import nn

import byteps.torch as bps
from byteps.errors import BytePSError, InvalidArgumentError, UnsupportedError

ROWS, WIDTH, BATCH, STEPS = 40, 3, 24, 5


class Words(nn.Module):
    def __init__(self, sparse: bool = True, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=sparse, dtype=dtype)
        self.head = nn.Linear(WIDTH, 1, dtype=dtype)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.table(words)) + self.table(words + 1)).square().mean()


def words(step: int) -> torch.Tensor:
    return torch.randint(0, ROWS - 1, (BATCH,), generator=torch.Generator().manual_seed(step))


def optimizers(model: Words, kind: str) -> list[torch.optim.Optimizer]:
    if kind == "sgd":
        return [torch.optim.SGD(model.parameters(), lr=0.5)]
    return [
        torch.optim.SparseAdam(model.table.parameters(), lr=0.05, eps=1e-3),
        torch.optim.SGD(model.head.parameters(), lr=0.1),
    ]


def trained(kind: str, distributed: bool, sparse: bool = True, **options: object) -> Words:
    torch.manual_seed(3)
    model = Words(sparse)
    used = optimizers(model, kind)
    if distributed:
        used = [bps.DistributedOptimizer(optimizer, **options) for optimizer in used]
    for step in range(STEPS):
        for optimizer in used:
            optimizer.zero_grad()
        model(my_share(words(step)) if distributed else words(step)).backward()
        for optimizer in used:
            optimizer.step()
    return model


def assert_same(kind: str, sparse: bool = True, **options: object) -> None:
    alone = trained(kind, distributed=False, sparse=sparse)
    together = trained(kind, distributed=True, sparse=True, **options)
    for expected, got in zip(alone.parameters(), together.parameters(), strict=True):
        assert torch.allclose(expected, got, rtol=0, atol=1e-6), (expected - got).abs().max()
    assert_equal_on_all_ranks(together)


def case_sgd_and_sparse_adam() -> None:
    for sync in ("auto", "step"):
        assert_same("sgd", sync=sync)
        assert_same("adam", sync=sync)


def case_made_dense() -> None:
    assert_same("sgd", sparse_as_dense=True)
    assert_same("sgd", sparse_as_dense=True, groups=1)
    assert_same("sgd", sparse_as_dense=True, sync="step", bucket_bytes=1 << 20)


def case_a_gradient_that_cannot_be_made_dense_on_one_rank() -> None:
    """The step fails on the other ranks with its cause; the next step is right."""
    culprit, several = bps.size() - 1, bps.size() > 1
    table = nn.Embedding(ROWS, WIDTH, sparse=True)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0), sparse_as_dense=True)
    to_dense = torch.Tensor.to_dense

    def fail(_: torch.Tensor) -> torch.Tensor:
        raise MemoryError("out of luck")

    for step in range(4):
        optimizer.zero_grad()
        loss = table(torch.tensor([step])).sum() * (1 + bps.rank())
        if step == 1 and bps.rank() == culprit:
            torch.Tensor.to_dense = fail
            with expect_error(MemoryError, "out of luck"):
                loss.backward()
            torch.Tensor.to_dense = to_dense
            with suppress(BytePSError):
                optimizer.synchronize()
        elif step == 1 and several:
            with expect_error(BytePSError, f"rank {culprit} (host ", "MemoryError: out of luck"):
                loss.backward()
                optimizer.step()
        else:
            loss.backward()
            optimizer.step()
            assert torch.equal(table.weight.grad[step], torch.full((WIDTH,), (1 + bps.size()) / 2))


def case_every_check() -> None:
    assert_same("sgd", nan_check=True, find_unused_parameters=True)


def case_rows_on_some_ranks_only() -> None:
    """The other ranks have neither a gradient nor an earlier one to tell that it is sparse."""
    table = nn.Embedding(ROWS, WIDTH, sparse=True)
    nn.init.ones_(table.weight)
    other = nn.Parameter(torch.zeros(1))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([table.weight, other], lr=1.0))
    for step in range(3):
        optimizer.zero_grad()
        loss = other.sum()
        if bps.rank() == bps.size() - 1:
            loss = loss + table(torch.tensor([step, step, 7])).sum()
        loss.backward()
        assert table.weight.grad.is_sparse
        optimizer.step()
    expected = torch.ones(ROWS, WIDTH)
    expected[:3] -= 2 / bps.size()
    expected[7] -= 3 / bps.size()
    assert torch.allclose(table.weight, expected)


def case_rows_on_no_rank() -> None:
    table = nn.Embedding(ROWS, WIDTH, sparse=True)
    other = nn.Parameter(torch.zeros(1))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([table.weight, other], lr=1.0))
    before = table.weight.detach().clone()
    for chosen in ([], [5], []):
        optimizer.zero_grad()
        (other.sum() + table(torch.tensor(chosen, dtype=torch.int64)).sum() * (1.0 if chosen else 0.0)).backward()
        optimizer.step()
    assert torch.equal(before != table.weight, torch.arange(ROWS)[:, None].expand(-1, WIDTH) == 5)


def case_uncoalesced_gradients_of_several_passes() -> None:
    for passes in (1, 2):  # two rounds, or one
        table = nn.Embedding(ROWS, WIDTH, sparse=True)
        nn.init.zeros_(table.weight)
        optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
        optimizer = bps.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
        for _ in range(2):
            table(torch.tensor([bps.rank(), bps.rank(), 9])).sum().backward()
        optimizer.step()
        expected = torch.zeros(ROWS, WIDTH)
        expected[: bps.size()] = -4 / bps.size()
        expected[9] = -2
        assert torch.allclose(table.weight, expected), (passes, table.weight)


def case_sum_and_other_operations() -> None:
    table = nn.Embedding(ROWS, WIDTH, sparse=True)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), op=bps.Sum)
    table(torch.tensor([4])).sum().backward()
    assert torch.equal(table.weight.grad.to_dense()[4], torch.full((WIDTH,), float(bps.size())))
    optimizer.step()
    if bps.size() > 1:
        table = nn.Embedding(ROWS, WIDTH, sparse=True)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), op=bps.Max)
        with expect_error(UnsupportedError, "Average or Sum"):
            table(torch.tensor([4])).sum().backward()


def case_bfloat16_rows() -> None:
    torch.manual_seed(1)
    model = Words(dtype=torch.bfloat16)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        model(my_share(words(step))).backward()
        optimizer.step()
    assert_equal_on_all_ranks(model)


def case_float16_rows_whose_sum_would_overflow() -> None:
    table = nn.Embedding(ROWS, WIDTH, sparse=True, dtype=torch.float16)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    (table(torch.tensor([4])) * 60000).sum().backward()
    optimizer.synchronize()
    assert torch.equal(table.weight.grad.to_dense()[4], torch.full((WIDTH,), 60000, dtype=torch.float16))


def case_sparse_on_one_rank_and_dense_on_another() -> None:
    if bps.size() == 1:
        return  # one rank cannot differ
    model = Words(sparse=bps.rank() == 0)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.table.parameters(), lr=0.1))
    with expect_error(InvalidArgumentError, "sparse", "dense", "sparse_as_dense=True"):
        model(words(0)).backward()
        optimizer.step()


def case_in_a_bucket() -> None:
    if bps.size() == 1:
        return  # nothing is sent
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), groups=1)
    with expect_error(InvalidArgumentError, "shares a bucket", "sparse_as_dense=True"):
        model(words(0)).backward()
        optimizer.step()
