"""The job that carries a process group's collectives: its own, or shared with other groups."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from byteps import runtime
from byteps._core import BlockingCalls
from byteps.errors import AbortedError, BytePSError, NotInitializedError
from byteps.handles import Handle
from byteps.runtime import Job
from byteps.torch.c10d.arguments import CORE_OPS
from byteps.torch.c10d.blocking_call import BlockingCall
from byteps.torch.c10d.group_info import GroupInfo
from byteps.torch.c10d.joining import Joining
from byteps.torch.c10d.progress import Awaited, Progress
from byteps.torch.c10d.rendezvous import join_group, join_world
from byteps.torch.tensor import READER

__all__ = ["Channel", "OwnChannel", "SharedChannel"]

_PREFIX = "c10d"
_lock = threading.Lock()  # guards all _Names


class Launched(Protocol):
    """A Collective or a Reduction."""

    number: int  # counts those of the group's job from 1; set before launch()

    def launch(self, job: Job, prefix: str) -> None: ...
    def begin(self) -> None: ...
    def fail(self, error: Exception) -> None: ...


class Channel(ABC):
    """A job with exactly the ranks of a group, numbered as in it. All methods are thread-safe.

    Collectives get their names in the order of `submit`, which must be the same on all ranks.
    """

    prefix: str  # of the push_pulls' names

    def __init__(self, job: Job | None) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._job = job  # None: not joined, or closed

    @property
    @abstractmethod
    def is_joined(self) -> bool:
        """Whether `submit` launches at once. Stays true."""

    @abstractmethod
    def submit(self, collective: Launched) -> None:
        """Launches a collective, at once or when the job is joined. Does not wait for other ranks.

        Raises:
            BytePSError: the push_pulls cannot be started, or the group is destroyed.
        """

    def blocking_calls(self, limit_s: float, go_on: Callable[[Handle, int], Progress]) -> BlockingCalls | None:
        """Returns an object for collectives in which the calling thread waits.

        Args:
            limit_s: of a wait, unless the call has another one.
            go_on: called with the handle, and the number of the collective, if its push_pull is
                still in flight at the end: the time is over, or a signal's handler has raised.

        Returns:
            None: the job is not joined, is left, or has one rank.
        """
        job = self._job
        if job is None:
            return None
        return job.in_flight.blocking_calls(self.prefix, READER, CORE_OPS, limit_s, self._numbers, go_on)

    @contextmanager
    def _launching(self, job: Job) -> Iterator[None]:
        """The collectives in the block get consecutive numbers and names; needs the lock.

        Blocking calls do not take the lock. Meanwhile they fail, and their threads come to `submit`.
        """
        names = job.in_flight.names.family(self.prefix)
        names.hold()
        try:
            yield
        finally:
            names.let_go()

    def waiting(self) -> list[Awaited]:
        """Returns the blocking calls in which threads wait at the moment."""
        job = self._job
        if job is None:
            return []
        return [BlockingCall(job.in_flight, name) for name in job.in_flight.names.reserved(self.prefix)]

    @abstractmethod
    def explain(self, error: BytePSError) -> BytePSError:
        """Returns an error of the job with what only the group knows."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the job if it was joined for this group only. May be repeated."""


class _Names:
    """A prefix of the names of one group's push_pulls in a job."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._taken = False

    @classmethod
    def take(cls, job: Job) -> _Names:
        """Returns the first free one: the same one if ranks take and free in one order."""
        with _lock:
            of_job = _names_of_jobs.setdefault(job, [])
            names = next((names for names in of_job if not names._taken), None)
            if names is None:
                names = cls(f"{_PREFIX}{len(of_job) or ''}")
                of_job.append(names)
            names._taken = True
            return names

    def free(self) -> None:
        with _lock:
            self._taken = False


_names_of_jobs: WeakKeyDictionary[Job, list[_Names]] = WeakKeyDictionary()


class SharedChannel(Channel):
    """The job of this process, for groups of all ranks.

    All ranks create and destroy such groups in the same order, and so give a group the same prefix.
    Prefixes are reused, because names stay declared for as long as the job lives.
    """

    def __init__(self, job: Job, *, joined: bool) -> None:
        """`joined`: the job was joined for this group, which leaves it when it is destroyed."""
        super().__init__(job)
        self._joined = joined
        self._names = _Names.take(job)
        self.prefix = self._names.prefix

    @property
    def is_joined(self) -> bool:
        return True

    @classmethod
    def of_world(cls, info: GroupInfo) -> SharedChannel:
        job, joined = join_world(info)
        return cls(job, joined=joined)

    def submit(self, collective: Launched) -> None:
        with self._lock:
            if self._job is None:
                raise _destroyed()
            with self._launching(self._job):
                collective.number = next(self._numbers)
                collective.launch(self._job, self.prefix)
        collective.begin()

    def explain(self, error: BytePSError) -> BytePSError:
        return error

    def close(self) -> None:
        with self._lock:
            job, self._job = self._job, None
        if job is None:
            return
        self._names.free()
        if self._joined:
            runtime.leave(job)


class OwnChannel(Channel):
    """A job for this group alone. The group's first collective joins it, in a thread of its own.

    So ranks may call the first collectives of several groups in different orders.
    """

    prefix = _PREFIX

    def __init__(self, info: GroupInfo) -> None:
        super().__init__(None)
        self._info = info
        self._joining: Joining | None = None
        self._waiting: list[Launched] = []  # collectives that wait for the job
        self._closed = False

    @property
    def is_joined(self) -> bool:
        return self._job is not None or self._closed

    def submit(self, collective: Launched) -> None:
        with self._lock:
            if self._closed:
                raise _destroyed()
            if self._job is None:
                collective.number = next(self._numbers)
                self._wait_for_job(collective)
                return
            with self._launching(self._job):
                collective.number = next(self._numbers)
                collective.launch(self._job, self.prefix)
        collective.begin()

    def explain(self, error: BytePSError) -> BytePSError:
        """Adds the failure of the job of all ranks, which may be why a rank has left this job."""
        explained = self._info.explain(error)
        failure = _failure_of_own_job()
        return type(error)(f"{explained}; before, the job of all ranks has failed: {failure}") if failure else explained

    def close(self) -> None:
        with self._lock:
            self._closed = True
            job, self._job = self._job, None
            joining = self._joining
        if joining is not None:
            joining.give_up()
        if job is not None:
            runtime.leave(job)

    def _join(self) -> Job:
        # Cloned, because other threads may use it while this one waits.
        store: Any = self._info.store
        return join_group(replace(self._info, store=store.clone()), self._watch)

    def _wait_for_job(self, collective: Launched) -> None:
        self._waiting.append(collective)
        if self._joining is None:
            self._joining = Joining(self._join, self._joined, self._failed)
            self._joining.start()

    def _joined(self, job: Job) -> None:
        with self._lock:
            self._joining = None
            waiting, self._waiting = self._waiting, []
            closed = self._closed
            if not closed:
                with self._launching(job):
                    self._job = job
                    for collective in waiting:
                        collective.launch(job, self.prefix)
        for collective in waiting:
            if closed:
                collective.fail(_destroyed())
            else:
                with suppress(BytePSError):  # the collective's Work raises it
                    collective.begin()
        if closed:
            runtime.leave(job)

    def _failed(self, error: Exception) -> None:
        """Fails the collectives that wait. The next one tries to join again."""
        with self._lock:
            self._joining = None
            waiting, self._waiting = self._waiting, []
        for collective in waiting:
            collective.fail(error)

    def _watch(self) -> None:
        """Raises if a rank of the job of all ranks is lost, or the group is destroyed."""
        failure = _failure_of_own_job()
        if failure:
            raise AbortedError(failure)
        joining = self._joining
        if joining is not None and joining.is_given_up:
            raise _destroyed()


def _failure_of_own_job() -> str:
    return runtime.current_job().node.failure() if runtime.is_initialized() else ""


def _destroyed() -> BytePSError:
    return NotInitializedError("a collective of a process group after destroy_process_group: create the group again")
