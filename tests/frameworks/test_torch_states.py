"""The states of buckets and of rounds: tables of every transition, without a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from byteps.torch.bucket import Bucket, BucketState, Gradient  # noqa: E402
from byteps.torch.options import Owner, ReducerOptions  # noqa: E402
from byteps.torch.round import PassEnd, Round, RoundState  # noqa: E402


class FakeBucket(Bucket):
    """A bucket of two parameters whose push_pull raises if `fails` is set."""

    fails = False

    def __init__(self) -> None:
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        gradients = [Gradient(f"prefix.{index}", 0) for index in range(2)]
        super().__init__(parameters, gradients, ReducerOptions(Owner("Test", "", "")))
        self.begin_round(2)

    def wire_names(self) -> Sequence[str]:
        return [self.name]

    def is_in_place(self) -> bool:
        return True

    def is_unwritten(self) -> bool:
        return True

    def _may_be_sent(self) -> bool:
        return True

    def _start(self, in_flight: object, step: int) -> None:
        if self.fails:
            raise ValueError

    def _receive(self, written: list[Any]) -> Sequence[Any]:
        return self._start(None, 0) or []


B = BucketState
BUCKET_ACTIONS: dict[str, Callable[[FakeBucket], object]] = {
    "send": lambda bucket: bucket.send(None, 1),
    "keep_own": lambda bucket: bucket.keep_own(),
    "finish": lambda bucket: bucket.finish([]),
    "fail": lambda bucket: bucket.fail(),
    "defer": lambda bucket: bucket.defer(),
    "receive_deferred": lambda bucket: bucket.receive_deferred([]),
    "begin_round": lambda bucket: bucket.begin_round(2),
}
BUCKET_PATHS = {
    B.WAITING: [],
    B.IN_FLIGHT: ["send"],
    B.REDUCED: ["send", "finish"],
    B.FAILED: ["send", "fail"],
    B.DEFERRED: ["send", "defer"],
}
# The state after each action; "=": the same; "-": refused.
BUCKET_TABLE = """
           send       keep_own  finish   fail    defer     receive_deferred  begin_round
WAITING    IN_FLIGHT  REDUCED   -        -       -         -                 =
IN_FLIGHT  -          -         REDUCED  FAILED  DEFERRED  -                 -
REDUCED    IN_FLIGHT  =         -        -       -         -                 WAITING
FAILED     IN_FLIGHT  REDUCED   -        -       -         -                 WAITING
DEFERRED   -          -         -        FAILED  -         WAITING           =
"""


def row_of(table: str, state: Enum) -> dict[str, Enum | None]:
    """Returns the state after each action; None: it is refused."""
    actions, *rows = (line.split() for line in table.strip().splitlines())
    (row,) = (row[1:] for row in rows if row[0] == state.name)
    after = {"=": state, "-": None, **type(state).__members__}
    return {action: after[name] for action, name in zip(actions, row, strict=True)}


def bucket_in(state: BucketState) -> FakeBucket:
    bucket = FakeBucket()
    for action in BUCKET_PATHS[state]:
        BUCKET_ACTIONS[action](bucket)
    assert bucket.state is state
    return bucket


@pytest.mark.parametrize("state", BucketState)
def test_transitions_of_buckets(state: BucketState) -> None:
    for action, expected in row_of(BUCKET_TABLE, state).items():
        bucket = bucket_in(state)
        if expected is None:
            with pytest.raises(AssertionError, match=f"BucketState is {state.name}, expected .* before "):
                BUCKET_ACTIONS[action](bucket)
            assert bucket.state is state, action
        else:
            BUCKET_ACTIONS[action](bucket)
            assert bucket.state is expected, action


@pytest.mark.parametrize(
    ("state", "action"),
    [(B.WAITING, "send"), (B.REDUCED, "send"), (B.IN_FLIGHT, "finish"), (B.DEFERRED, "receive_deferred")],
)
def test_a_push_pull_that_raises_leaves_the_state(state: BucketState, action: str) -> None:
    bucket = bucket_in(state)
    bucket.fails = True
    with pytest.raises(ValueError):
        BUCKET_ACTIONS[action](bucket)
    assert bucket.state is state


def test_a_bucket_is_ready_after_all_passes_of_all_gradients() -> None:
    bucket = FakeBucket()
    first, second = bucket.gradients
    assert [bucket.count(gradient) for gradient in (first, second, first)] == [False] * 3
    assert not bucket.is_ready()
    assert bucket.count(second)
    assert bucket.is_ready()
    assert bucket.count(first)  # one pass too many
    assert first.passes_left == -1


def test_a_bucket_is_due_until_it_is_sent_and_after_another_gradient() -> None:
    bucket = FakeBucket()
    assert bucket.is_due()
    bucket.send(None, 1)
    bucket.finish([])
    bucket.expect_gradients()
    assert not bucket.is_due()
    bucket.count(bucket.gradients[0])
    assert bucket.is_due()
    bucket.begin_round(2)
    assert bucket.is_due()


R = RoundState
ROUND_ACTIONS: dict[str, Callable[[Round], object]] = {
    "watch": lambda round_: round_.watch(7, outermost=True),
    "enter": lambda round_: round_.enter(7),
    "count": lambda round_: round_.count(1),
    "leave": lambda round_: round_.leave(7, nested=False),
    "complete": lambda round_: round_.complete(),
    "acknowledge": lambda round_: round_.acknowledge_early_end(),
    "defer": lambda round_: round_.defer(),
    "abandon": lambda round_: round_.abandon(),
    "reset": lambda round_: round_.reset(),
    "begin_step": lambda round_: round_.begin_step(),
    "sent_one": lambda round_: round_.sent_one(),
}
ROUND_PATHS = {
    R.IDLE: [],
    R.EXPECTING: ["watch"],
    R.COLLECTING: ["watch", "enter"],
    R.COUNTING: ["enter", "count"],
    R.BETWEEN_PASSES: ["watch", "enter", "leave"],
    R.SYNCHRONIZED: ["enter", "complete"],
    R.ENDED_EARLY: ["enter", "count", "sent_one", "complete"],
}
# `leave` changes nothing where pass 7 is not watched or gave no gradient.
ROUND_TABLES = (
    """
                watch      enter       count     leave           complete      acknowledge
IDLE            EXPECTING  COLLECTING  -         =               SYNCHRONIZED  =
EXPECTING       =          COLLECTING  -         =               SYNCHRONIZED  =
COLLECTING      =          =           COUNTING  BETWEEN_PASSES  SYNCHRONIZED  =
COUNTING        =          COLLECTING  -         =               SYNCHRONIZED  =
BETWEEN_PASSES  =          COLLECTING  -         =               SYNCHRONIZED  =
SYNCHRONIZED    EXPECTING  COLLECTING  -         =               -             =
ENDED_EARLY     EXPECTING  COLLECTING  -         =               -             SYNCHRONIZED
""",
    """
                defer  abandon  reset  begin_step  sent_one
IDLE            =      -        =      =           =
EXPECTING       IDLE   IDLE     IDLE   =           =
COLLECTING      IDLE   IDLE     IDLE   =           =
COUNTING        IDLE   IDLE     IDLE   =           =
BETWEEN_PASSES  IDLE   IDLE     IDLE   =           =
SYNCHRONIZED    -      -        =      IDLE        =
ENDED_EARLY     -      -        =      IDLE        =
""",
)


def round_in(state: RoundState) -> Round:
    round_ = Round(2)
    for action in ROUND_PATHS[state]:
        ROUND_ACTIONS[action](round_)
    assert round_.state is state
    return round_


@pytest.mark.parametrize("state", RoundState)
def test_transitions_of_rounds(state: RoundState) -> None:
    for action, expected in [item for table in ROUND_TABLES for item in row_of(table, state).items()]:
        round_ = round_in(state)
        before = round_.step
        if expected is None:
            with pytest.raises(AssertionError, match=f"RoundState is {state.name}, expected .* before "):
                ROUND_ACTIONS[action](round_)
            assert (round_.state, round_.step) == (state, before), action
        else:
            ROUND_ACTIONS[action](round_)
            assert round_.state is expected, action
            assert round_.step == before + (action in ("complete", "defer", "abandon")), action
            assert round_.is_synchronized == (expected in (R.SYNCHRONIZED, R.ENDED_EARLY)), action
            if action in ("complete", "defer", "abandon", "reset"):
                assert not round_.is_in_backward and round_.backward is None, action


def test_the_last_of_the_passes_ends_a_round() -> None:
    round_ = Round(2)
    for backward, end in ((1, PassEnd.MORE_PASSES), (2, PassEnd.LAST_PASS)):
        round_.watch(backward, outermost=False)
        round_.enter(backward)
        assert round_.leave(backward, nested=False) is end
    round_.complete()
    assert round_.leave(2, nested=False) is PassEnd.STALE
    assert (round_.step, round_.completed, round_.completed_since_step) == (2, 1, 1)


def test_nested_passes_do_not_count() -> None:
    round_ = Round(1)
    round_.watch(1, outermost=False)
    round_.enter(1)
    round_.watch(2, outermost=False)
    round_.enter(2)
    assert round_.leave(2, nested=True) is PassEnd.MORE_PASSES
    assert round_.is_in_backward  # the outer one
    assert round_.leave(1, nested=False) is PassEnd.LAST_PASS


def test_a_pass_without_gradients_does_not_begin_a_round() -> None:
    round_ = Round(1)
    round_.watch(1, outermost=True)
    assert round_.is_in_backward
    assert round_.leave(1, nested=False) is PassEnd.EMPTY
    round_.reset()
    assert round_.state is R.IDLE
    assert round_.step == 1


def test_the_last_bucket_ends_a_round_whose_end_is_not_reported() -> None:
    round_ = Round(1)
    round_.enter(1)
    round_.count(2)
    assert [round_.sent_one(), round_.sent_one()] == [False, True]
    round_.complete()
    assert [round_.acknowledge_early_end(), round_.acknowledge_early_end()] == [True, False]
    assert round_.is_synchronized
