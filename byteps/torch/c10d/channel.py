"""A process group's way to its ranks: a job, and what keeps apart the groups that share one."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from byteps import runtime
from byteps.errors import AbortedError, BytePSError, NotInitializedError
from byteps.runtime import Job
from byteps.torch.c10d.collective import Collective
from byteps.torch.c10d.group_info import GroupInfo
from byteps.torch.c10d.joining import Joining
from byteps.torch.c10d.rendezvous import join_group, join_world

__all__ = ["Channel", "OwnChannel", "SharedChannel"]

_PREFIX = "c10d"
_lock = threading.Lock()  # of all _Names


class Channel(ABC):
    """What a group needs of its job: the job of exactly its ranks, numbered as in the group. Any thread may call.

    Collectives get their names one after the other, in the order of `submit`, which is to be the same on all ranks.
    """

    prefix: str  # of the names of push_pulls

    @abstractmethod
    def submit(self, collective: Collective) -> None:
        """Launches a collective, at once or when the job has been joined. Does not wait for other ranks to join.

        Raises:
            BytePSError: the push_pulls cannot be started, or the group was destroyed.
        """

    @abstractmethod
    def explain(self, error: BytePSError) -> BytePSError:
        """An error of the job, with what the job does not know."""

    @abstractmethod
    def close(self) -> None:
        """Leaves what was joined for the group alone. May be repeated."""


class _Names:
    """A prefix of names in a job."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._taken = False

    @classmethod
    def take(cls, job: Job) -> _Names:
        """The first that are free; the same on all ranks that take and free in the same order."""
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
    """The process's own job, for groups of all ranks.

    Such groups are created and destroyed in the same order everywhere, so that all ranks give a group the same prefix,
    which another group has had before: names stay declared for as long as the job lives.
    """

    def __init__(self, job: Job, *, joined: bool) -> None:
        """`joined`: for this group, which leaves the job when it is destroyed."""
        self._job: Job | None = job
        self._joined = joined
        self._names = _Names.take(job)
        self._lock = threading.Lock()
        self._numbers = count(1)
        self.prefix = self._names.prefix

    @classmethod
    def of_world(cls, info: GroupInfo) -> SharedChannel:
        job, joined = join_world(info)
        return cls(job, joined=joined)

    def submit(self, collective: Collective) -> None:
        with self._lock:
            if self._job is None:
                raise _destroyed()
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
    """A job of the group's own, which its first collective joins, on a thread of its own.

    So the first collectives of several groups may be called in different orders on different ranks.
    """

    prefix = _PREFIX

    def __init__(self, info: GroupInfo) -> None:
        self._info = info
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._job: Job | None = None
        self._joining: Joining | None = None
        self._waiting: list[Collective] = []  # for the job
        self._closed = False

    def submit(self, collective: Collective) -> None:
        with self._lock:
            if self._closed:
                raise _destroyed()
            collective.number = next(self._numbers)
            if self._job is None:
                self._wait_for_job(collective)
                return
            collective.launch(self._job, self.prefix)
        collective.begin()

    def explain(self, error: BytePSError) -> BytePSError:
        """A rank that leaves this job may have done so because another is lost, which the job of all ranks can tell."""
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
        store: Any = self._info.store  # others may use it while this thread waits in its clone
        return join_group(replace(self._info, store=store.clone()), self._watch)

    def _wait_for_job(self, collective: Collective) -> None:
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
                self._job = job
                for collective in waiting:
                    collective.launch(job, self.prefix)
        for collective in waiting:
            if closed:
                collective.fail(_destroyed())
            else:
                with suppress(BytePSError):  # who waits for the collective gets it
                    collective.begin()
        if closed:
            runtime.leave(job)

    def _failed(self, error: Exception) -> None:
        """The next collective tries again."""
        with self._lock:
            self._joining = None
            waiting, self._waiting = self._waiting, []
        for collective in waiting:
            collective.fail(error)

    def _watch(self) -> None:
        """Raises if joining is in vain: whoever is waited for may be the one that is lost."""
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
