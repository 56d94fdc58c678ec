"""DistributedDataParallel as a module: buffers, attributes, copies, checks, errors."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import torch
from frameworks.torch_ddp_training import plain_loop
from frameworks.torch_training import assert_close, data, mlp, my_share, sgd
from support.expect import expect_error
from torch import nn

import byteps.torch as bps
from byteps.errors import BytePSError, InvalidArgumentError, NotFiniteError


def differs(buffer: torch.Tensor) -> bool:
    """Returns whether the tensor differs on any rank. All ranks call it."""
    here = not torch.equal(buffer, bps.broadcast(buffer, 0, f"differs.{buffer.numel()}"))
    return bool(bps.push_pull(torch.tensor(float(here)), name="differs", op=bps.Max))


def case_buffers_are_those_of_rank_0_before_each_forward_in_training() -> None:
    model = bps.DistributedDataParallel(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    norm = model.module[1]
    norm.momentum = 0.0  # forward changes only the counter
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


def case_a_copy_in_eval_does_not_train_alone() -> None:
    """Neither through the model nor around it, also if parameters were frozen; no_grad works."""
    original = bps.DistributedDataParallel(mlp())
    original.module[0].weight.requires_grad_(False)
    clone = copy.deepcopy(original).eval()
    with torch.no_grad():
        clone(torch.ones(1, 6))
    x = torch.ones(2, 6, requires_grad=True)
    assert torch.autograd.grad(clone(x).sum(), x)[0].any()
    if bps.size() > 1:
        for forward in (clone, clone.module):
            with expect_error(InvalidArgumentError, "a copy of a model", "train()", "DistributedDataParallel(model"):
                forward(x).sum().backward()
        clone.module.requires_grad_(False)
        clone.module[0].weight.requires_grad_(True)
        with expect_error(InvalidArgumentError, "a copy of a model"):
            clone(x).sum().backward()
    clone.module.requires_grad_(True)
    clone.train()(x).sum().backward()
    clone.eval().zero_grad()
    (clone(x).sum() * (bps.rank() + 1)).backward()
    # The mean over ranks of the sum of 2 samples.
    assert torch.equal(clone.module[4].bias.grad, torch.full((3,), (bps.size() + 1.0)))


def case_it_can_be_collected() -> None:
    model = bps.DistributedDataParallel(mlp())
    alive = [weakref.ref(model.module[0].weight), weakref.ref(model)]
    plain_loop(model, sgd(model), *map(my_share, data(0)))
    del model
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


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
    # Not an nn.Embedding: nothing tells that its gradient is sparse.
    table = nn.Parameter(torch.ones(10, 3))
    model = bps.DistributedDataParallel(Lookup(table))
    with expect_error(InvalidArgumentError, "shares a bucket", "sparse_as_dense=True"):
        model(torch.tensor([1])).sum().backward()


class Lookup(nn.Module):
    def __init__(self, table: nn.Parameter) -> None:
        super().__init__()
        self.table, self.other = table, nn.Parameter(torch.ones(3))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(indices, self.table, sparse=True) * self.other


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


def case_a_backward_pass_that_fails_on_one_rank_leaves_no_rank_a_step_behind() -> None:
    """On the other ranks that step fails with an error, and later steps work."""

    def fail(_: torch.Tensor) -> None:
        raise ValueError("out of luck")

    culprit, several = bps.size() - 1, bps.size() > 1
    for megabytes in (1e-6, 25):
        module = mlp()
        model = bps.DistributedDataParallel(module, bucket_cap_mb=megabytes, nan_check=True)
        x = torch.ones(1, 6)
        unit = torch.autograd.grad(module(x).sum(), list(module.parameters()))
        for step in range(1, 6):
            model.zero_grad()
            loss = model(x).sum() * step * (1 + bps.rank())
            if step == 3 and bps.rank() == culprit:
                hook = module[0].weight.register_hook(fail)  # the last gradient but one
                with expect_error(ValueError, "out of luck"):
                    loss.backward()
                hook.remove()
            elif step == 3 and several:
                with expect_error(BytePSError, f"rank {culprit} (host ", "an exception has ended this rank's backward"):
                    loss.backward()
            else:
                loss.backward()
                scale = step * (1 + bps.size()) / 2
                for parameter, gradient in zip(module.parameters(), unit, strict=True):
                    torch.testing.assert_close(parameter.grad, gradient * scale)


def case_gradients_that_are_kept_over_steps() -> None:
    """Gradients from before zero_grad keep their values, but not with gradient_as_bucket_view."""
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
