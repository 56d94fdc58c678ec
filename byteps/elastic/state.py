"""The state of a training program: what has to be the same on all ranks when training begins or
goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from byteps import membership
from byteps.errors import InvalidArgumentError, PeerLostError
from byteps.objects import broadcast_object

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State"]

# The error of a job that has lost a process, under the name that scripts of Horovod catch. A job
# may fail with other errors, too; `run` handles all of them.
HorovodInternalError = PeerLostError


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  (Horovod's name)
    """Leaves the training function at a commit, because the ranks of the job have changed.

    It is raised on all ranks at the same commit, and `run` handles it. This process is already
    in the new membership.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        """Args: skip_sync: all ranks have the state, since none has come."""
        super().__init__(f"the ranks of the job have changed (skip_sync={skip_sync})")
        self.skip_sync = skip_sync


class State:
    """The base class of states. Subclasses define `save`, `restore` and `sync`."""

    def __init__(
        self, bcast_object: Callable[[Any], Any] | None = None, get_rank: Callable[[], int] | None = None
    ) -> None:
        """Creates the state.

        Args:
            bcast_object: returns rank 0's object, as `broadcast_object`, which is the default.
            get_rank: accepted for Horovod's scripts, unused.
        """
        self._bcast_object = broadcast_object if bcast_object is None else bcast_object
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Has functions called whenever the ranks have changed, or the job was joined again.

        For example, one that scales the learning rate. They see the new `rank` and `size`, and are
        called before the state is broadcast. They must not communicate, because ranks that are new
        do not call them.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls `reset` and the callbacks. For `run`."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: object, update_res: object) -> None:
        """Does nothing: there is no notification to remember, since the ranks agree at commits."""

    def commit(self) -> None:
        """Saves the state, and looks for a change of the ranks.

        All ranks must call it equally often, at the same points of the program. Training goes back
        to the last commit if the job fails. A rank that is lost does not make the job fail: the
        others go on without it.

        Raises:
            HostsUpdatedInterrupt: the ranks have changed.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """`commit` without saving.

        Raises:
            HostsUpdatedInterrupt: the ranks have changed.
        """
        change = membership.change_at_commit()
        if change is not None:
            raise HostsUpdatedInterrupt(skip_sync=not change.has_newcomers)

    def save(self) -> None:
        """Keeps a copy of the state in memory."""
        raise NotImplementedError(f"{type(self).__name__} has no save()")

    def restore(self) -> None:
        """Returns to the copy that `save` has kept."""
        raise NotImplementedError(f"{type(self).__name__} has no restore()")

    def sync(self) -> None:
        """Makes the state rank 0's on all ranks. Blocks; all ranks call it."""
        raise NotImplementedError(f"{type(self).__name__} has no sync()")

    def sync_after_loss(self) -> None:
        """`sync` where ranks were lost and none has come.

        All ranks have the same state then, except for what differs between ranks by design, such as
        the samples that each of them has used. By default this does nothing.
        """

    def reset(self) -> None:
        """Adapts objects to the new ranks, before the state is broadcast.

        By default this does nothing.
        """


class ObjectState(State):
    """Python objects as attributes: `ObjectState(epoch=0, batch=0)`.

    Objects must be such that `pickle` and `copy.deepcopy` accept them, and small: each `save`
    copies them.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **attributes: Any,
    ) -> None:
        """Creates the state.

        Args:
            bcast_object: see `State`; so is get_rank. Both may be left out.
            get_rank: see `bcast_object`.
            attributes: the objects by name.

        Raises:
            InvalidArgumentError: the name of a method, or an object that cannot be copied.
        """
        super().__init__(bcast_object, get_rank)
        self._check_names(attributes)
        self._saved_state = {name: self._copied(name, value) for name, value in attributes.items()}
        for name, value in attributes.items():
            setattr(self, name, value)

    def save(self) -> None:
        self._saved_state = {name: self._copied(name, getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, self._copied(name, value))

    def sync(self) -> None:
        """Makes the attributes those of rank 0, as they are now, and saves them.

        Raises:
            InvalidArgumentError: on all ranks: an object cannot be pickled. On ranks that have
                other attributes than rank 0: they differ.
        """
        names = list(self._saved_state)
        if not names:
            return
        values = self._bcast_object({name: getattr(self, name) for name in names})
        if sorted(values) != sorted(names):
            raise InvalidArgumentError(
                f"{type(self).__name__}.sync: the ranks differ: rank 0 has the attributes {', '.join(sorted(values))}; "
                f"this rank has {', '.join(sorted(names))}"
            )
        for name, value in values.items():
            setattr(self, name, value)
        ObjectState.save(self)

    def _check_names(self, names: Iterable[str]) -> None:
        for name in names:
            if callable(getattr(type(self), name, None)):
                raise InvalidArgumentError(
                    f"{type(self).__name__}: '{name}' is a method of the state: expected another name"
                )

    def _copied(self, name: str, value: Any) -> Any:
        try:
            return copy.deepcopy(value)
        except Exception as error:  # __deepcopy__ and __reduce__ of any class may raise anything
            raise InvalidArgumentError(
                f"{type(self).__name__}: '{name}' is {type(value).__name__}, which cannot be copied ({error}): "
                "expected an object that copy.deepcopy accepts"
            ) from None
