"""TorchState and training with played changes of the ranks; all ranks run every case."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from support.expect import expect_error

import byteps.torch as bps
from byteps import membership
from byteps.errors import InvalidArgumentError
from byteps.membership import Change
from byteps.runtime import jobs_so_far
from byteps.torch.elastic import HorovodInternalError

STEPS, SAMPLES = 6, 31


class Extra(torch.nn.Module):
    """A module with state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.note = f"of rank {bps.rank()}"

    def get_extra_state(self) -> Any:
        return {"note": self.note}

    def set_extra_state(self, state: Any) -> None:
        self.note = state["note"]

    def forward(self, x: Any) -> Any:
        return self.linear(x)


def new_state(steps: int = 0, **attributes: Any) -> Any:
    """A state that differs between ranks."""
    torch.manual_seed(bps.rank())
    model = Extra()
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1 + bps.rank()))
    state = bps.elastic.TorchState(model, optimizer, **attributes)
    for _ in range(steps):
        train_one(state)
    return state


def train_one(state: Any) -> None:
    state.optimizer.zero_grad()
    state.model(torch.rand(5, 4)).square().mean().backward()
    state.optimizer.step()


def assert_same_on_all_ranks(state: Any) -> None:
    mine = [*state.model.parameters(), *(v for s in state.optimizer.state.values() for v in s.values())]
    flat = torch.cat([value.detach().reshape(-1).float() for value in mine])
    largest, smallest = (bps.push_pull(sign * flat, name="same", op=bps.Max) for sign in (1, -1))
    assert torch.equal(largest, -smallest)


def case_sync_takes_the_state_of_rank_0() -> None:
    state = new_state(steps=2, epoch=10 + bps.rank(), losses=[bps.rank()])
    state.sync()
    assert_same_on_all_ranks(state)
    assert len(state.optimizer.state) == 2
    assert (state.epoch, state.losses, state.model.note) == (10, [0], "of rank 0")
    assert state.optimizer.param_groups[0]["lr"] == 0.1


def case_what_was_synchronized_is_saved() -> None:
    state = new_state(steps=1, epoch=bps.rank())
    state.sync()
    train_one(state)
    state.epoch = 9
    state.restore()
    assert_same_on_all_ranks(state)
    assert state.epoch == 0


def case_a_rank_with_an_optimizer_that_has_made_no_step() -> None:
    state = new_state()
    if bps.rank() == 0:
        for parameter in state.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with state.optimizer.skip_synchronize():
            state.optimizer.step()
    state.sync()
    assert len(state.optimizer.state) == 2
    assert_same_on_all_ranks(state)


def case_several_models_and_a_scheduler() -> None:
    state = new_state()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(state.optimizer, 0.5)
    for _ in range(bps.rank() + 1):
        scheduler.step()
    other = torch.nn.Linear(4, 2)
    both = bps.elastic.TorchState(state.model, state.optimizer, other=other, scheduler=scheduler)
    both.sync()
    assert torch.equal(bps.broadcast(other.weight.detach(), 0, "other"), other.weight)
    assert scheduler.last_epoch == 1
    assert scheduler.optimizer is state.optimizer
    assert scheduler.get_last_lr() == [0.05]


def case_ranks_with_other_models_are_told() -> None:
    if bps.size() == 1:
        return
    model = torch.nn.Linear(4, 2 + bps.rank())
    with expect_error(InvalidArgumentError, "broadcast_parameters: the ranks differ", "'bias'", "[2]"):
        bps.elastic.TorchState(model).sync()


def case_training_goes_on_after_changes_and_a_failure() -> None:
    sampler = bps.elastic.ElasticSampler(range(SAMPLES), seed=4)
    state = new_state(sampler=sampler, step=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(state.step)])
    changes = [None, Change(has_newcomers=True), None, Change(has_newcomers=False)]
    begins: list[int] = []
    used: list[int] = []

    @bps.elastic.run
    def train(state: Any) -> str:
        begins.append(state.step)
        for number, index in enumerate(state.sampler):
            train_one(state)
            used.append(index)
            state.sampler.record_batch(number, 1)
            if state.step == STEPS - 1 and len(begins) == 3:
                state.step = -1
                raise HorovodInternalError("played")
            state.step += 1
            state.commit()
        return "done"

    jobs = jobs_so_far()
    with mock.patch.object(membership, "change_at_commit", lambda: changes.pop(0) if changes else None):
        assert train(state) == "done"
    assert begins == [0, 2, 4, STEPS - 1]
    assert resets == begins[1:]
    assert jobs_so_far() == jobs + 1
    assert_same_on_all_ranks(state)
    everything = [index for rank in range(bps.size()) for index in bps.broadcast_object(used, rank)]
    assert set(everything) == set(range(SAMPLES))
    # The failure repeats a step; each division of what is left may repeat one less than the ranks.
    assert len(everything) <= SAMPLES + bps.size() + (bps.size() - 1)
    assert state.sampler.processed_indices >= set(used)
