"""TorchState: copies in memory, in this process; and sync, in real jobs."""

from __future__ import annotations

from typing import Any

import pytest
from support.case_jobs import CaseJob, each_case, each_job, jobs_of, outcome_of

torch = pytest.importorskip("torch")

from frameworks import torch_elastic_cases  # noqa: E402

from byteps.errors import InvalidArgumentError  # noqa: E402
from byteps.torch import elastic  # noqa: E402
from byteps.torch.elastic import handlers  # noqa: E402
from byteps.torch.elastic import state as state_module  # noqa: E402

pytestmark = pytest.mark.timeout(300)  # the first test of a job waits for all its cases

JOBS = jobs_of({torch_elastic_cases: [1, 3]})


@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)


@each_job(JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()


def trained(model: Any, optimizer: Any, steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(5, 4, generator=generator)).square().mean().backward()
        optimizer.step()


def values(state: Any) -> list[Any]:
    moments = [state.optimizer.state[p] for p in state.model.parameters()]
    return [
        *(value.clone() for value in state.model.state_dict().values()),
        *(value.clone() for moment in moments for value in moment.values()),
    ]


def alike(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def new_state(**attributes: Any) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return elastic.TorchState(model, optimizer, **attributes)


def test_a_model_and_an_optimizer_return_to_the_copy() -> None:
    state = new_state(epoch=0)
    trained(state.model, state.optimizer, 2)
    state.epoch = 1
    state.save()
    saved, objects = values(state), (state.model, state.optimizer)
    for _ in range(2):  # also steps after a restore do not change the copy
        trained(state.model, state.optimizer, 3)
        state.optimizer.param_groups[0]["lr"], state.epoch = 0.5, 2
        assert not alike(saved, values(state))
        state.restore()
        assert alike(saved, values(state))
        assert (state.optimizer.param_groups[0]["lr"], state.epoch) == (0.1, 1)
    assert (state.model, state.optimizer) == objects, "the same objects"


def test_an_optimizer_returns_to_the_time_before_its_first_step() -> None:
    state = new_state()
    trained(state.model, state.optimizer, 1)
    state.restore()
    assert not state.optimizer.state


def test_a_scheduler_stays_with_its_optimizer() -> None:
    state = new_state()
    scheduler = torch.optim.lr_scheduler.StepLR(state.optimizer, 1, gamma=0.5)
    state = elastic.TorchState(state.model, state.optimizer, scheduler=scheduler)
    state.optimizer.step()
    scheduler.step()
    state.restore()
    assert state.scheduler is scheduler
    assert scheduler.last_epoch == 0
    assert scheduler.optimizer is state.optimizer
    assert state.optimizer.param_groups[0]["lr"] == 0.1


def test_copies_keep_the_versions_of_modules() -> None:
    state = new_state()
    saved = state._handlers["model"]._saved
    assert saved._metadata == state.model.state_dict()._metadata
    own = {value.data_ptr() for value in state.model.state_dict().values()}
    assert not own & {value.data_ptr() for value in saved.values()}


def test_another_model_under_the_same_name() -> None:
    state = new_state()
    other = new_state().model
    state.model = other
    saved = [value.clone() for value in other.state_dict().values()]
    with torch.no_grad():
        other[0].weight.zero_()
    state.restore()
    assert state.model is other
    assert alike(saved, list(other.state_dict().values()))


def test_attributes_without_handlers_are_objects() -> None:
    state = elastic.TorchState(epoch=1)
    assert (state.model, state.optimizer, state.epoch) == (None, None, 1)
    state.epoch = 2
    state.restore()
    assert state.epoch == 1


def test_names_of_methods_are_refused_for_models_too() -> None:
    with pytest.raises(InvalidArgumentError, match="'sync' is a method"):
        elastic.TorchState(sync=torch.nn.Linear(1, 1))


def test_handlers_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubling(elastic.StateHandler):
        def save(self) -> None:
            self.saved = 2 * self.value[0]

        def restore(self) -> None:
            self.value[0] = self.saved

    monkeypatch.setattr(handlers, "_registry", handlers._registry)
    state_module.set_handler_registry([(list, Doubling), *state_module.get_handler_registry()])
    state = elastic.TorchState(numbers=[4])
    state.restore()
    assert state.numbers == [8]
    with pytest.raises(NotImplementedError, match="Doubling has no sync"):
        state.sync()


@pytest.mark.parametrize("name", ["TorchState", "StateHandler", "ModelStateHandler", "get_handler_registry"])
def test_names_of_horovods_modules(name: str) -> None:
    import byteps.torch as hvd

    assert hasattr(hvd.elastic.state, name)
    assert hvd.elastic.sampler.ElasticSampler is hvd.elastic.ElasticSampler
