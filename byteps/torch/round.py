"""The rounds of a reducer, and their backward passes. Pure: knows no tensors."""

from __future__ import annotations

from enum import Enum, auto

from byteps.torch.states import transition

__all__ = ["PassEnd", "Round", "RoundState"]


class RoundState(Enum):
    """States of a round."""

    IDLE = auto()  # no gradient has come since the last step
    EXPECTING = auto()  # a watched backward pass has begun, and has given no gradient yet
    COLLECTING = auto()  # a backward pass gives gradients
    COUNTING = auto()  # likewise, in compiled autograd: the last bucket to send ends the round
    BETWEEN_PASSES = auto()  # a backward pass has ended, and the round goes on
    SYNCHRONIZED = auto()  # the round is complete: each .grad is that of all ranks
    ENDED_EARLY = auto()  # likewise, from COUNTING: the round of other ranks may go on


class PassEnd(Enum):
    """What the end of a backward pass means for the round."""

    STALE = auto()  # the pass belongs to an earlier round
    EMPTY = auto()  # the pass has given no gradient: the round has not begun
    MORE_PASSES = auto()  # the round goes on
    LAST_PASS = auto()  # the round is to be completed


_SYNCHRONIZED = (RoundState.SYNCHRONIZED, RoundState.ENDED_EARLY)
_IN_PASS = (RoundState.EXPECTING, RoundState.COLLECTING, RoundState.COUNTING)
_UNFINISHED = (RoundState.IDLE, *_IN_PASS, RoundState.BETWEEN_PASSES)


class Round:
    """The current round of a reducer, and the number of those before.

    Backward passes are known by the numbers that autograd gives them. A pass is *watched* if
    autograd reports its end (`leave`). Passes may be nested in others, as reentrant checkpointing
    does.
    """

    def __init__(self, passes: int) -> None:
        self.passes = passes  # number of backward passes in a round
        self.step = 1  # number of the round in its job, which all ranks count alike
        self.completed = 0  # number of rounds that `complete` has ended
        self.completed_since_step = 0  # number of those since the last `begin_step`
        self.backward: int | None = None  # pass of the last gradient, in COLLECTING and COUNTING
        self._state = RoundState.IDLE
        self._passes_left = passes
        self._watched: set[int] = set()
        self._outermost: int | None = None  # the watched pass in which all others are nested
        self._unsent = 0  # number of buckets that COUNTING waits for

    @property
    def state(self) -> RoundState:
        return self._state

    @property
    def is_synchronized(self) -> bool:
        """Whether each .grad is that of all ranks."""
        return self._state in _SYNCHRONIZED

    @property
    def is_in_backward(self) -> bool:
        """Whether a backward pass has begun and not ended."""
        return self._state in _IN_PASS or bool(self._watched)

    def begin_job(self) -> None:
        self.step = 1

    def set_passes(self, passes: int) -> None:
        """Changes the number of backward passes, and begins the round anew."""
        self.passes = passes
        self.reset()

    def watch(self, backward: int, *, outermost: bool) -> None:
        """Autograd will report the end of a pass; `outermost`: passes until then are nested."""
        if self._state is RoundState.IDLE or self.is_synchronized:
            self._state = RoundState.EXPECTING
        self._watched.add(backward)
        if outermost:
            self._outermost = backward

    def is_watched(self, backward: int) -> bool:
        """Whether the end of this pass, or of the one that it is nested in, will be reported."""
        return backward in self._watched or self._outermost is not None

    def is_reported(self, backward: int) -> bool:
        """Whether the end of this pass itself will be reported."""
        return backward in self._watched

    def enter(self, backward: int) -> None:
        """The first gradient of a pass has come, or the first one after a nested pass."""
        self._state = RoundState.COLLECTING
        self.backward = backward

    def count(self, unsent: int) -> None:
        """After `enter`: the pass ends with the last of `unsent` buckets, and not by `leave`."""
        self._state = transition(self._state, (RoundState.COLLECTING,), RoundState.COUNTING)
        self._unsent = unsent

    def sent_one(self) -> bool:
        """Backward has sent a bucket. Returns whether COUNTING has come to its end."""
        if self._state is not RoundState.COUNTING:
            return False
        self._unsent -= 1
        return self._unsent == 0

    def leave(self, backward: int, *, nested: bool) -> PassEnd:
        """A watched pass has ended. After EMPTY comes `reset`, after LAST_PASS comes `complete`."""
        if backward not in self._watched:
            return PassEnd.STALE
        if backward == self._outermost and self.backward is None:
            return PassEnd.EMPTY
        self._state = transition(self._state, (*_IN_PASS, RoundState.BETWEEN_PASSES), RoundState.BETWEEN_PASSES)
        self._watched.discard(backward)
        self.backward = None
        if not nested:
            self._passes_left -= 1
        return PassEnd.MORE_PASSES if self._passes_left > 0 else PassEnd.LAST_PASS

    def complete(self) -> None:
        """Ends the round: the gradients of all ranks have come, or have failed."""
        early = self._state is RoundState.COUNTING and self._unsent == 0
        new = RoundState.ENDED_EARLY if early else RoundState.SYNCHRONIZED
        self._state = transition(self._state, _UNFINISHED, new)
        self._forget_passes()
        self.step += 1
        self.completed += 1
        self.completed_since_step += 1

    def acknowledge_early_end(self) -> bool:
        """Changes ENDED_EARLY to SYNCHRONIZED. Returns whether it did."""
        if self._state is not RoundState.ENDED_EARLY:
            return False
        self._state = RoundState.SYNCHRONIZED
        return True

    def defer(self) -> None:
        """Ends the round while its gradients are in flight."""
        self._state = transition(self._state, _UNFINISHED, RoundState.IDLE)
        self._forget_passes()
        self.step += 1

    def abandon(self) -> None:
        """Ends the round without its gradients, because a backward pass has failed."""
        self._state = transition(self._state, (*_IN_PASS, RoundState.BETWEEN_PASSES), RoundState.IDLE)
        self._forget_passes()
        self.step += 1

    def reset(self) -> None:
        """Begins the round anew. One that is synchronized stays so."""
        if not self.is_synchronized:
            self._state = RoundState.IDLE
        self._forget_passes()

    def begin_step(self) -> None:
        """Gradients that come now belong to another step."""
        if self.is_synchronized:
            self._state = RoundState.IDLE
        self.completed_since_step = 0

    def _forget_passes(self) -> None:
        self.backward = None
        self._watched.clear()
        self._outermost = None
        self._passes_left = self.passes
