"""Recipes for large batches: learning rate, metrics, batch normalization over all ranks."""

from __future__ import annotations

import copy
import math
import warnings

import torch
from support.expect import expect_error
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, MultiStepLR, SequentialLR

import byteps.torch as bps
from byteps.errors import InvalidArgumentError

Tensor = torch.Tensor


def optimizer_of(lr: float | Tensor = 0.1) -> torch.optim.Optimizer:
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": lr}, {"params": [nn.Parameter(torch.ones(1))]}]
    return torch.optim.SGD(groups, lr=0.01)


def rates(optimizer: torch.optim.Optimizer, *schedulers: object, steps: int = 7) -> list[float]:
    seen = [float(optimizer.param_groups[0]["lr"])]
    for _ in range(steps):
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        seen.append(float(optimizer.param_groups[0]["lr"]))
    return seen


def assert_rates(got: list[float], expected: list[float]) -> None:
    assert len(got) == len(expected) and all(map(math.isclose, got, expected)), (got, expected)


def case_warmup() -> None:
    optimizer = optimizer_of()
    assert_rates(rates(optimizer, bps.GradualWarmup(optimizer, 4, scale=3)), [0.1, 0.15, 0.2, 0.25, 0.3, 0.3, 0.3, 0.3])
    assert math.isclose(optimizer.param_groups[1]["lr"], 0.03)
    optimizer = optimizer_of()
    assert_rates(rates(optimizer, bps.GradualWarmup(optimizer, 0)), [0.1 * bps.size()] * 8)
    optimizer = optimizer_of()
    assert_rates(rates(optimizer, bps.GradualWarmup(optimizer, 1))[-1:], [0.1 * bps.size()])


def case_warmup_with_a_tensor_as_rate() -> None:
    optimizer = optimizer_of(torch.tensor(0.1))
    lr = optimizer.param_groups[0]["lr"]
    seen = rates(optimizer, bps.GradualWarmup(optimizer, 2, scale=2), steps=2)
    assert torch.allclose(torch.tensor(seen), torch.tensor([0.1, 0.15, 0.2])) and optimizer.param_groups[0]["lr"] is lr


def case_warmup_with_other_schedulers() -> None:
    optimizer = optimizer_of()
    warmup, steps = bps.GradualWarmup(optimizer, 2, scale=3), MultiStepLR(optimizer, [4, 6], gamma=0.1)
    assert_rates(rates(optimizer, warmup, steps), [0.1, 0.2, 0.3, 0.3, 0.03, 0.03, 0.003, 0.003])
    optimizer = optimizer_of()
    decay = ExponentialLR(optimizer, 0.5)
    assert_rates(rates(optimizer, bps.GradualWarmup(optimizer, 2, scale=3), decay, steps=3), [0.1, 0.1, 0.075, 0.0375])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR's own use of step(epoch)
        optimizer = optimizer_of()
        warmup, decay = bps.GradualWarmup(optimizer, 2, scale=3), ExponentialLR(optimizer, 0.5)
        sequence = SequentialLR(optimizer, [warmup, decay], milestones=[3])
        assert_rates(rates(optimizer, sequence, steps=4), [0.1, 0.2, 0.3, 0.1, 0.05])


def case_warmup_resumes() -> None:
    optimizer = optimizer_of()
    warmup = bps.GradualWarmup(optimizer, 4, scale=3)
    rates(optimizer, warmup, steps=2)
    saved = copy.deepcopy((optimizer.state_dict(), warmup.state_dict()))
    for make in (
        lambda optimizer: bps.GradualWarmup(optimizer, 4, scale=3),
        lambda optimizer: bps.GradualWarmup(optimizer, 9, scale=9),  # the saved scale is used
    ):
        other = optimizer_of()
        resumed = make(other)
        other.load_state_dict(saved[0])
        resumed.load_state_dict(saved[1])
        assert_rates(rates(other, resumed, steps=3), [0.2, 0.25, 0.3, 0.3])
    other = optimizer_of()
    other.load_state_dict(saved[0])
    assert_rates(rates(other, bps.GradualWarmup(other, 4, scale=3, last_epoch=1), steps=3), [0.2, 0.25, 0.3, 0.3])


def case_wrong_warmup() -> None:
    for arguments, message in (((-1,), "warmup_steps"), ((1.5,), "warmup_steps"), ((1, 0.0), "scale")):
        with expect_error(InvalidArgumentError, message):
            bps.GradualWarmup(optimizer_of(), *arguments)


def case_metric_average() -> None:
    # Rank r has r + 1 samples.
    values = [torch.arange(4.0 * rank, 4 * rank + rank + 1) for rank in range(bps.size())]
    metrics = bps.MetricAverage("loss", "share")
    for part in values[bps.rank()].split(2):
        metrics.update(len(part), loss=part.mean(), share=len(part))
    whole = torch.cat(values)
    for _ in range(2):
        result = metrics.compute()
        assert math.isclose(result["loss"], whole.mean()), result
    lengths = [(len(part), len(part)) for rank in range(bps.size()) for part in values[rank].split(2)]
    assert math.isclose(result["share"], sum(a * b for a, b in lengths) / sum(a for a, _ in lengths))
    metrics.reset()
    assert all(map(math.isnan, metrics.compute().values()))


def case_metric_average_of_a_rank_without_samples() -> None:
    metrics = bps.MetricAverage("loss")
    if bps.rank() == 0:
        metrics.update(3, loss=2.0)
        metrics.update(0, loss=float("nan"))
        metrics.update(loss=torch.tensor([6.0]))
    assert metrics.compute() == {"loss": 3.0}


def case_wrong_metrics() -> None:
    for names in ((), ("a", "a"), (3,)):
        with expect_error(InvalidArgumentError, "name of each metric"):
            bps.MetricAverage(*names)
    metrics = bps.MetricAverage("loss")
    with expect_error(InvalidArgumentError, "no metric 'los'"):
        metrics.update(1, los=2.0)
    with expect_error(InvalidArgumentError, "shape [2]"):
        metrics.update(1, loss=torch.ones(2))
    with expect_error(InvalidArgumentError, "count is -1"):
        metrics.update(-1, loss=1.0)


def norms(**options: object) -> tuple[nn.Module, nn.Module]:
    """Returns the layers of one process and over all ranks, with the same parameters."""
    torch.manual_seed(1)
    alone = nn.BatchNorm2d(4, **options)
    if alone.affine:
        nn.init.normal_(alone.weight)
        nn.init.normal_(alone.bias)
    return alone, bps.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone))


def shares(
    sizes: list[int], shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    whole = (torch.randn(sum(sizes), *shape, generator=generator) * 3 + 5).to(dtype)
    return whole, whole.split(sizes)[bps.rank()]


def assert_same_normalization(
    alone: nn.Module,
    together: nn.Module,
    sizes: list[int],
    shape: tuple[int, ...] = (4, 3, 5),
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> None:
    for seed in range(3):
        whole, mine = (x.clone().requires_grad_() for x in shares(sizes, shape, seed, dtype))
        upstream = shares(sizes, shape, 10 + seed, dtype)
        expected, got = alone(whole), together(mine)
        expected.backward(upstream[0])
        got.backward(upstream[1])
        assert got.dtype == expected.dtype
        assert_all_close(got, expected.split(sizes)[bps.rank()], tolerance)
        assert_all_close(mine.grad, whole.grad.split(sizes)[bps.rank()], tolerance)
        for (name, buffer), other in zip(alone.named_buffers(), together.buffers(), strict=True):
            assert_all_close(buffer, other, tolerance, name)
    for (name, one), other in zip(alone.named_parameters(), together.named_parameters(), strict=True):
        assert_all_close(bps.push_pull(other[1].grad, op=bps.Sum), one.grad, 20 * tolerance, name)


def assert_all_close(got: Tensor, expected: Tensor, tolerance: float, what: str = "") -> None:
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    assert torch.allclose(got, expected, rtol=tolerance, atol=tolerance), (what, (got - expected).abs().max())


def even() -> list[int]:
    return [6] * bps.size()


def case_batch_norm_of_all_ranks() -> None:
    for options in (
        {},
        {"momentum": None},
        {"momentum": 0.3},
        {"affine": False},
        {"track_running_stats": False},
        {"eps": 1e-2},
    ):
        assert_same_normalization(*norms(**options), even())


def case_batch_norm_of_uneven_batches() -> None:
    uneven = [3 * rank + 2 for rank in range(bps.size())]
    assert_same_normalization(*norms(), uneven)
    if bps.size() > 1:
        assert_same_normalization(*norms(), [0, *uneven[1:]])
    assert_same_normalization(*norms(), [1] * (bps.size() - 1) + [2])


def case_batch_norm_of_every_dimension_and_dtype() -> None:
    for kind, shape in ((nn.BatchNorm1d, (4,)), (nn.BatchNorm1d, (4, 7)), (nn.BatchNorm3d, (4, 2, 3, 2))):
        torch.manual_seed(1)
        alone = kind(4)
        assert_same_normalization(alone, bps.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone)), even(), shape)
    alone, together = norms()
    assert_same_normalization(alone.double(), together.double(), even(), dtype=torch.float64, tolerance=1e-12)
    assert_same_normalization(*norms(), even(), dtype=torch.bfloat16, tolerance=3e-2)


def case_batch_norm_in_evaluation() -> None:
    alone, together = norms()
    assert_same_normalization(alone, together, even())
    alone.eval()
    together.eval()
    untracked = [norm.eval() for norm in norms(track_running_stats=False)]
    if bps.rank() == 0:  # without the others
        x = torch.randn(2, 4, 3, 3)
        assert torch.allclose(alone(x), together(x), atol=1e-5)
        assert torch.allclose(untracked[0](x), untracked[1](x), atol=1e-5)


def case_batch_norm_of_large_mean() -> None:
    alone, together = norms()
    whole, mine = shares(even(), (4, 8, 8), 1)
    expected, got = alone(whole + 1e4), together(mine + 1e4)
    exact = nn.BatchNorm2d(4).double()
    exact.load_state_dict(norms()[0].state_dict())
    reference = exact((whole + 1e4).double()).float()
    error = (got - reference.split(even())[bps.rank()]).abs().max()
    assert error <= 2 * (expected - reference).abs().max() + 1e-3, error


def case_training_with_batch_norm() -> None:
    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))

    alone = model()
    together = bps.DistributedDataParallel(bps.SyncBatchNorm.convert_sync_batchnorm(model()))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (alone, together)]
    for step in range(4):
        x = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        y = torch.randint(0, 3, (12,), generator=torch.Generator().manual_seed(step))
        for net, optimizer, parts in zip((alone, together), optimizers, (1, bps.size()), strict=True):
            rank = bps.rank() if parts > 1 else 0
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x.chunk(parts)[rank]), y.chunk(parts)[rank]).backward()
            optimizer.step()
    for name, value in alone.state_dict().items():
        assert_all_close(together.module.state_dict()[name].float(), value.float(), 1e-5, name)


def case_conversion() -> None:
    model = nn.Sequential(
        nn.BatchNorm1d(3, momentum=None), nn.Sequential(nn.BatchNorm2d(2, affine=False)), nn.Linear(1, 1)
    )
    tensors = {name: value.data_ptr() for name, value in model.state_dict().items()}
    model[1].eval()
    converted = bps.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model and isinstance(model[0], bps.SyncBatchNorm) and isinstance(model[1][0], bps.SyncBatchNorm)
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == tensors
    assert model[0].momentum is None and model[0].training and not model[1][0].training and not model[1][0].affine
    assert bps.SyncBatchNorm.convert_sync_batchnorm(model)[0] is model[0]
    with expect_error(InvalidArgumentError, "LazyBatchNorm1d", "run a batch"):
        bps.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.LazyBatchNorm1d()))


def case_wrong_use_of_batch_norm() -> None:
    if bps.size() == 1:
        return  # one rank uses torch's own layer
    norm = bps.SyncBatchNorm(4)
    for shape in ((4,), (2, 3)):
        with expect_error(InvalidArgumentError, "(N, 4, ...)"):
            norm(torch.ones(shape))
    with expect_error(InvalidArgumentError, "1 value(s) per channel"):
        norm(torch.ones(1 if bps.rank() == 0 else 0, 4))
