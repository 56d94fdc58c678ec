"""States of elastic jobs, and the function that runs training again, with played changes of the ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from byteps import elastic, membership
from byteps.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State
from byteps.errors import ArgumentTypeError, BytePSError, DataLossError, InvalidArgumentError, NotInitializedError
from byteps.membership import Change

LOST, CAME = Change(has_newcomers=False), Change(has_newcomers=True)


class Played:
    """A job whose ranks change at commits as the test says, and all calls of it in their order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.changes: list[Change | None] = []  # at the next commits
        self.failure = ""

    def change_at_commit(self) -> Change | None:
        self.events.append("ask")
        return self.changes.pop(0) if self.changes else None

    def enter_again(self) -> None:
        self.events.append("enter again")
        self.failure = ""

    def log(self, event: str) -> Any:
        return lambda *_: self.events.append(event)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()
    monkeypatch.setattr(membership, "change_at_commit", played.change_at_commit)
    monkeypatch.setattr(membership, "enter_again", played.enter_again)
    monkeypatch.setattr(membership, "failure", lambda: played.failure)
    monkeypatch.setattr(membership, "note_state", lambda: None)
    return played


class Logged(State):
    def __init__(self, job: Played) -> None:
        super().__init__()
        self.register_reset_callbacks([job.log("first callback"), job.log("second callback")])
        for method in ("save", "restore", "sync", "sync_after_loss", "reset"):
            setattr(self, method, job.log(method))


def same(obj: Any) -> Any:
    return obj


def test_a_commit_saves_and_then_asks(job: Played) -> None:
    Logged(job).commit()
    assert job.events == ["save", "ask"]


def test_a_check_does_not_save(job: Played) -> None:
    Logged(job).check_host_updates()
    assert job.events == ["ask"]


@pytest.mark.parametrize(("change", "skips"), [(LOST, True), (CAME, False)])
def test_a_change_interrupts_after_the_state_was_saved(job: Played, change: Change, skips: bool) -> None:
    job.changes = [change]
    with pytest.raises(HostsUpdatedInterrupt) as interrupt:
        Logged(job).commit()
    assert interrupt.value.skip_sync is skips
    assert job.events == ["save", "ask"]


def test_an_interrupt_is_no_error_of_byteps() -> None:
    assert not issubclass(HostsUpdatedInterrupt, BytePSError)


def test_training_without_changes(job: Played) -> None:
    @elastic.run
    def train(state: Logged, factor: int, *, plus: int) -> int:
        """Trains."""
        state.commit()
        return factor * 10 + plus

    assert train(Logged(job), 4, plus=2) == 42
    assert job.events == ["sync", "save", "ask"]
    assert (train.__name__, train.__doc__) == ("train", "Trains.")


@pytest.mark.parametrize(("change", "sync"), [(LOST, "sync_after_loss"), (CAME, "sync")])
def test_training_goes_on_in_new_ranks(job: Played, change: Change, sync: str) -> None:
    job.changes = [change]

    @elastic.run
    def train(state: Logged) -> None:
        job.events.append("train")
        state.commit()

    train(Logged(job))
    reset = ["reset", "first callback", "second callback"]
    assert job.events == ["sync", "train", "save", "ask", *reset, sync, "train", "save", "ask"]


def failures(errors: Iterable[Exception]) -> Any:
    """A training function that fails by each of these errors in turn."""
    waiting = list(errors)

    @elastic.run
    def train(state: Logged) -> int:
        if waiting:
            raise waiting.pop(0)
        return 7

    return train


FAILED = ["restore", "enter again", "reset", "first callback", "second callback", "sync"]


def test_a_failed_job_is_entered_again_from_the_last_commit(job: Played) -> None:
    assert failures([HorovodInternalError("lost"), HorovodInternalError("lost")])(Logged(job)) == 7
    assert job.events == ["sync", *FAILED, *FAILED]


@pytest.mark.parametrize("error", [DataLossError("x"), RuntimeError("of a framework")], ids=["byteps", "framework"])
def test_errors_are_a_failure_if_the_job_has_failed(job: Played, error: Exception) -> None:
    job.failure = "a rank is lost"
    assert failures([error])(Logged(job)) == 7
    assert job.events == ["sync", *FAILED]


@pytest.mark.parametrize("error", [DataLossError("x"), InvalidArgumentError("x"), KeyError("label")], ids=repr)
def test_errors_of_the_program_end_it(job: Played, error: Exception) -> None:
    with pytest.raises(type(error)):
        failures([error])(Logged(job))
    assert job.events == ["sync"]


def test_a_failure_in_sync_after_a_change(job: Played) -> None:
    job.changes = [CAME]
    state = Logged(job)
    syncs = [lambda: None, failing_sync]
    state.sync = lambda: (job.log("sync")(), syncs.pop(0)() if syncs else None)  # type: ignore[method-assign]
    elastic.run(lambda state: state.commit())(state)
    assert job.events[:6] == ["sync", "save", "ask", "reset", "first callback", "second callback"]
    assert job.events[6:] == ["sync", *FAILED, "save", "ask"]


def failing_sync() -> None:
    raise HorovodInternalError("lost in sync")


def test_a_loss_after_a_failure_does_not_skip_the_sync(job: Played) -> None:
    """Each interrupt and failure decides for itself."""
    job.changes = [LOST]
    runs = iter([Logged.commit, lambda _: failing_sync(), lambda _: None])

    @elastic.run
    def train(state: Logged) -> None:
        next(runs)(state)

    train(Logged(job))
    assert [event for event in job.events if "sync" in event] == ["sync", "sync_after_loss", "sync"]


def test_the_job_is_entered_outside_of_the_handler_of_the_failure(job: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that leave while an exception is handled are said to have left because of it."""
    from byteps.ending import on_its_way

    seen: list[str] = []
    monkeypatch.setattr(membership, "enter_again", lambda: seen.append(on_its_way()))
    failures([HorovodInternalError("lost")])(Logged(job))
    assert seen == [""]


def test_another_way_to_enter_again(job: Played) -> None:
    def train(state: Logged) -> None:
        if "mine" not in job.events:
            raise HorovodInternalError("lost")

    elastic.run_fn(train, job.log("mine"))(Logged(job))
    assert job.events == ["sync", "restore", "mine", "reset", "first callback", "second callback", "sync"]


def test_only_states_are_states(job: Played) -> None:
    with pytest.raises(ArgumentTypeError, match="train: the first argument is SimpleNamespace: expected a State"):
        failures([])(SimpleNamespace(sync=job.log("sync")))
    assert not job.events


@pytest.mark.parametrize("method", ["save", "restore", "sync"])
def test_subclasses_have_to_define(method: str) -> None:
    with pytest.raises(NotImplementedError, match=f"State has no {method}"):
        getattr(State(), method)()


def test_notifications_of_horovod_do_nothing(job: Played) -> None:
    Logged(job).on_hosts_updated(1.5, 1)
    assert not job.events


@pytest.mark.usefixtures("job")
def test_objects_are_saved_and_restored() -> None:
    state = ObjectState(same, lambda: 0, epoch=1, losses=[1.0])
    state.epoch, state.losses[0] = 2, 3.0
    state.restore()
    assert (state.epoch, state.losses) == (1, [1.0])
    state.epoch = 5
    state.losses.append(2.0)
    state.commit()
    for _ in range(2):  # also what was restored does not change the copy
        state.epoch = 6
        state.losses.clear()
        state.restore()
        assert (state.epoch, state.losses) == (5, [1.0, 2.0])


def test_a_state_in_horovods_form_and_in_ours(job: Played) -> None:
    assert ObjectState(bcast_object=same, get_rank=lambda: 0, epoch=1).epoch == 1
    assert ObjectState(epoch=1).epoch == 1
    assert not job.events


def test_sync_takes_what_rank_0_has_now_and_saves_it() -> None:
    root = {"epoch": 7, "losses": [0.5]}
    seen: list[Any] = []
    state = ObjectState(lambda obj: seen.append(obj) or root, epoch=1, losses=[])
    state.epoch = 3
    state.sync()
    assert seen == [{"epoch": 3, "losses": []}], "what this rank would send is not what was saved"
    assert (state.epoch, state.losses) == (7, [0.5])
    state.epoch = 9
    state.losses.append(1.0)
    state.restore()
    assert (state.epoch, state.losses) == (7, [0.5])


def test_sync_of_nothing_does_not_communicate() -> None:
    ObjectState(lambda _: pytest.fail("a broadcast")).sync()


def test_ranks_with_other_attributes_are_told() -> None:
    state = ObjectState(lambda _: {"epoch": 0}, batch=0)
    with pytest.raises(InvalidArgumentError, match="rank 0 has the attributes epoch; this rank has batch"):
        state.sync()


def test_names_of_methods_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'commit' is a method"):
        ObjectState(commit=3)


def test_what_cannot_be_copied_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="'guard' is lock, which cannot be copied"):
        ObjectState(guard=threading.Lock())


def test_without_a_job_there_is_no_commit() -> None:
    with pytest.raises(NotInitializedError):
        ObjectState(epoch=0).commit()
    assert membership.failure() == ""


def test_the_job_is_left_before_it_is_entered_again_even_if_leaving_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def leave() -> None:
        events.append("left")
        raise RuntimeError("an operation was pending")

    monkeypatch.setattr(membership, "shutdown", leave)
    monkeypatch.setattr(membership, "init", lambda: events.append("entered"))
    membership.enter_again()
    assert events == ["left", "entered"]
