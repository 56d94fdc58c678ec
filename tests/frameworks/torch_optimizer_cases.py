"""DistributedOptimizer as an optimizer, and the errors of wrong use."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from contextlib import nullcontext

import torch
from frameworks.torch_training import (
    Optimizer,
    assert_equal_on_all_ranks,
    assert_equal_on_all_ranks_after_broadcast,
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
from byteps.errors import InvalidArgumentError, NotFiniteError, UnsupportedError


def case_it_stays_the_same_optimizer() -> None:
    model = mlp()
    plain = torch.optim.Adam(model.parameters())
    forward_backward(model, *data(0))
    plain.step()
    state = copy.deepcopy(plain.state_dict())
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
    assert optimizer is plain and isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
    assert str(optimizer.state_dict()) == str(state)
    for clone in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(clone) is torch.optim.Adam
        assert str(clone.state_dict()) == str(state)
    optimizer.load_state_dict(state)
    with expect_error(InvalidArgumentError, "distributed already"):
        bps.DistributedOptimizer(optimizer, model.named_parameters())


def case_model_and_optimizer_can_be_collected() -> None:
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    alive = [weakref.ref(model[0].weight), weakref.ref(optimizer)]
    plain_step(model, optimizer, *data(0), True)
    del model, optimizer
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def case_wrong_names() -> None:
    model, other = mlp(), mlp()
    named = list(model.named_parameters())
    for names, part in (
        ([*named, ("0.weight", other[0].weight)], "'0.weight' is given twice"),
        (named[1:], "1 of the optimizer's 6 parameters"),
        (model.parameters(), "expected (name, parameter)"),
    ):
        with expect_error(InvalidArgumentError, part):
            bps.DistributedOptimizer(sgd(model), names)
    for passes in (0, 1.5):
        with expect_error(InvalidArgumentError, f"backward_passes_per_step is {passes}"):
            bps.DistributedOptimizer(sgd(model), named, backward_passes_per_step=passes)


def case_too_many_backward_passes() -> None:
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), sync="step")
    forward_backward(model, *data(0))
    with expect_error(InvalidArgumentError, "more gradients than the 1", "Gradient.", "backward_passes_per_step"):
        forward_backward(model, *data(0))
    with expect_error(InvalidArgumentError, "in flight") if bps.size() > 1 else nullcontext():
        optimizer.synchronize()  # the extra pass has changed gradients in flight
    optimizer.zero_grad()
    forward_backward(model, *data(0))
    optimizer.step()


def case_gradients_touched_while_in_flight() -> None:
    if bps.size() == 1:
        return  # one rank sends nothing
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), sync="step")
    touches: dict[str, Callable[[], object]] = {
        "clipping": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
        "zeroing": lambda: model.zero_grad(set_to_none=False),
        "dropping": model.zero_grad,
        "scaling": lambda: model[0].weight.grad.mul_(2),
    }
    for touch in touches.values():
        forward_backward(model, *data(0))
        touch()
        with expect_error(InvalidArgumentError, "changed while it was in flight", "optimizer.synchronize()"):
            optimizer.step()
    forward_backward(model, *data(0))
    with expect_error(InvalidArgumentError, "zero_grad()", "in flight"):
        optimizer.zero_grad()
    with optimizer.skip_synchronize(), expect_error(InvalidArgumentError, "step()", "in flight"):
        optimizer.step()
    optimizer.step()
    assert_equal_on_all_ranks_after_broadcast(model, optimizer)


def case_an_optimizer_that_is_another_tools() -> None:
    for wrap in (
        lambda model, optimizer: bps.DistributedOptimizer(optimizer),
        lambda model, optimizer: bps.DistributedOptimizer(optimizer, asynchronous=True),
        bps.CrossBarrier,
    ):
        model = mlp()
        optimizer = wrap(model, sgd(model))
        with expect_error(InvalidArgumentError, "distributed already, or has a CrossBarrier"):
            bps.DistributedOptimizer(optimizer)


def case_wrong_arguments() -> None:
    model = mlp()
    for options, part in (
        ({"sync": "never"}, "'auto', 'backward', 'step'"),
        ({"op": "Average"}, "op is 'Average'"),
        ({"gradient_predivide_factor": 0.0}, "positive number"),
        ({"gradient_predivide_factor": 2.0, "op": bps.Sum}, "op=Average"),
        ({"bucket_bytes": -1}, "bucket_bytes is -1"),
    ):
        with expect_error(InvalidArgumentError, part):
            bps.DistributedOptimizer(sgd(model), model.named_parameters(), **options)


def case_a_closure() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor, distributed: bool) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        if distributed:
            assert torch.equal(loss, bps.broadcast(loss.detach(), 0))

    for sync in ("auto", "step"):
        assert_same_training(step=step, sync=sync)


class HalfByHalf(torch.optim.SGD):
    """Calls the step of its base class twice, whose hooks run, too, after a plain SGD was made."""

    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        loss = super().step(closure)
        super().step()
        return loss


def case_a_step_made_of_steps_of_its_base_class() -> None:
    torch.optim.SGD([torch.zeros(1)])
    for with_closure in (False, True):
        parameter = nn.Parameter(torch.zeros(2))
        optimizer = bps.DistributedOptimizer(HalfByHalf([parameter], lr=0.5), [("p", parameter)], op=bps.Sum)

        def closure(parameter: nn.Parameter = parameter, optimizer: Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = ((bps.rank() + 1) * parameter).sum()
            loss.backward()
            return loss + bps.rank()

        total = bps.size() * (bps.size() + 1) / 2
        for number in range(1, 3):
            if with_closure:
                mean = total * 2 * float(parameter[0].detach()) / bps.size() + (bps.size() - 1) / 2
                assert abs(float(optimizer.step(closure)) - mean) < 1e-4
            else:
                closure()
                optimizer.step()
            assert torch.equal(parameter.data, torch.full((2,), -total * number)), parameter


def case_lbfgs_is_refused() -> None:
    with expect_error(UnsupportedError, "line search", "another optimizer"):
        bps.DistributedOptimizer(torch.optim.LBFGS(mlp().parameters()))


def case_a_state_that_is_loaded_goes_on() -> None:
    torch.manual_seed(0)
    model = mlp()
    make = lambda m: torch.optim.Adam(m.parameters(), lr=1e-2)  # noqa: E731
    optimizer = bps.DistributedOptimizer(make(model), model.named_parameters())
    train = lambda m, o, n: plain_step(m, o, my_share(data(n)[0]), my_share(data(n)[1]), True)  # noqa: E731
    train(model, optimizer, 0)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    other = mlp()
    resumed = bps.DistributedOptimizer(make(other), other.named_parameters(), groups=2)
    train(other, resumed, 1)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for number in (1, 2):
        train(model, optimizer, number)
        train(other, resumed, number)
    for expected, got in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(expected, got, rtol=0, atol=1e-6)


def case_a_copied_model_is_on_its_own() -> None:
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    clone, clones_optimizer = copy.deepcopy((model, optimizer))
    if bps.rank() == 0:  # sends nothing: the other ranks do not do it
        forward_backward(clone, *data(0))
        clones_optimizer.step()
    optimizer.zero_grad()


def case_ranks_with_other_parameters() -> None:
    if bps.size() == 1:
        return  # one rank cannot differ
    last = bps.size() - 1
    odd = bps.rank() == last
    layers = [nn.Linear(2, 3 if odd else 2)]
    fewer = list(nn.Linear(2, 2).parameters())[: 1 if odd else 2]
    for make, parts in (
        (lambda: bps.DistributedOptimizer(torch.optim.SGD(layers[0].parameters(), lr=1.0)), ("[2, 2]", "[3, 2]")),
        (lambda: bps.DistributedOptimizer(torch.optim.SGD(fewer, lr=1.0)), ("group0.1", "nothing more")),
        (lambda: bps.DistributedOptimizer(sgd(mlp()), backward_passes_per_step=1 + odd), ("step=1", "step=2")),
        (lambda: bps.DistributedOptimizer(sgd(mlp()), groups=1 + odd), ("group0.5", "with")),
        (lambda: bps.DistributedOptimizer(sgd(mlp().double() if odd else mlp())), ("float32", "float64")),
    ):
        with expect_error(InvalidArgumentError, "rank 0 has", f"rank {last} has", *parts):
            make().step()
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model))
    forward_backward(model, *data(0))
    with expect_error(InvalidArgumentError, "rank 0 has", f"rank {last} has"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2 + odd))]})


def case_a_model_cast_after_wrapping() -> None:
    for options in ({}, {"groups": 2}):
        model = mlp()
        bps.broadcast_parameters(model.state_dict(), 0)
        optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), **options)
        model.double()  # before the first gradient: the hooks are still there
        for number in range(2):
            x, y = data(number)
            plain_step(model, optimizer, my_share(x).double(), my_share(y), True)
        assert_equal_on_all_ranks(model)
        model.float()
        if bps.size() > 1:
            optimizer.zero_grad()
            with expect_error(InvalidArgumentError, "torch.float64", "torch.float32", "cast the model before"):
                forward_backward(model, *data(0))
                optimizer.step()


def case_a_parameter_that_shrinks_after_wrapping() -> None:
    if bps.size() == 1:
        return  # nothing is sent
    parameter = nn.Parameter(torch.ones(2000))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), sync="step")
    for _ in range(2):
        parameter.sum().backward()
        optimizer.step()
    parameter.data, parameter.grad = torch.ones(1000), None
    parameter.sum().backward()
    optimizer.step()
    assert torch.equal(parameter.detach(), torch.zeros(1000)), "all ranks alike, so nothing is wrong"


def case_nan_check() -> None:
    last = bps.size() - 1
    for options in ({}, {"groups": 1}, {"sync": "step"}):
        model = mlp()
        optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), nan_check=True, **options)
        x, y = data(0)
        before = copy.deepcopy(model.state_dict())
        poison = model[4].bias.register_hook(lambda grad: grad * (torch.nan if bps.rank() == last else 1.0))
        with expect_error(NotFiniteError, "4.bias'", f"on rank {last}. ", "No step"):
            optimizer.zero_grad()
            forward_backward(model, x, y)
            optimizer.step()
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        poison.remove()
        optimizer.zero_grad()
        forward_backward(model, x, y)
        optimizer.step()


def case_nan_check_of_a_round_that_failed_on_one_rank() -> None:
    if bps.size() == 1:
        return  # one rank sends nothing
    model = mlp()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), nan_check=True, sync="step")
    for _ in range(2):
        forward_backward(model, *data(0))
        if bps.rank() == 0:
            model[0].weight.grad.add_(1)
            with expect_error(InvalidArgumentError, "changed while it was in flight"):
                optimizer.step()
        else:
            optimizer.step()
        optimizer.zero_grad()


def case_parameters_that_no_rank_uses_are_left_alone() -> None:
    for options in ({}, {"groups": 1}, {"sync": "step"}, {"sync": "step", "bucket_bytes": 1 << 20}):
        model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        optimizer = bps.DistributedOptimizer(
            optimizer, model.named_parameters(), find_unused_parameters=True, **options
        )
        for used in (0, 1, 0):
            before = model[1 - used].weight.detach().clone()
            optimizer.zero_grad()
            model[used](torch.ones(1, 2)).sum().backward()
            optimizer.step()
            assert model[1 - used].weight.grad is None
            assert torch.equal(model[1 - used].weight, before)  # no momentum, either
