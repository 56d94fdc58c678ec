"""A process group's way to its ranks: a job, and what keeps apart the groups that share one."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from weakref import WeakKeyDictionary

from byteps import runtime
from byteps.errors import AbortedError, BytePSError, NotInitializedError
from byteps.runtime import Job
from byteps.torch.c10d.place import Place
from byteps.torch.c10d.rendezvous import join_group, join_world
from byteps.torch.c10d.sizes import Sizes

__all__ = ["Channel", "OwnChannel", "SharedChannel"]

_PREFIX = "c10d"
_lock = threading.Lock()  # of all _Names


class Channel(ABC):
    """What a group needs of its job. For use by one thread at a time, as all of a group is."""

    prefix: str  # of the names of push_pulls
    sizes: Sizes  # of what has these names

    @property
    @abstractmethod
    def job(self) -> Job:
        """The job of exactly the group's ranks, numbered as in the group.

        Raises:
            BytePSError: it cannot be joined, or the group was destroyed.
        """

    @abstractmethod
    def explain(self, error: BytePSError) -> BytePSError:
        """An error of the job, with what the job does not know."""

    @abstractmethod
    def close(self) -> None:
        """Leaves what was joined for the group alone. May be repeated."""


class _Names:
    """A prefix of names in a job, with the sizes that they have."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.sizes = Sizes()
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
        self.prefix, self.sizes = self._names.prefix, self._names.sizes

    @classmethod
    def of_world(cls, place: Place) -> SharedChannel:
        job, joined = join_world(place)
        return cls(job, joined=joined)

    @property
    def job(self) -> Job:
        if self._job is None:
            raise _destroyed()
        return self._job

    def explain(self, error: BytePSError) -> BytePSError:
        return error

    def close(self) -> None:
        job, self._job = self._job, None
        if job is None:
            return
        self._names.free()
        if self._joined:
            runtime.leave(job)


class OwnChannel(Channel):
    """A job of the group's own, which its first collective joins: that waits for all ranks of the group."""

    prefix = _PREFIX

    def __init__(self, place: Place) -> None:
        self.sizes = Sizes()
        self._place = place
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._closed = False

    @property
    def job(self) -> Job:
        return self._job or self._join()

    def explain(self, error: BytePSError) -> BytePSError:
        """A rank that leaves this job may have done so because another is lost, which the job of all ranks can tell."""
        explained = self._place.explain(error)
        failure = _failure_of_own_job()
        return type(error)(f"{explained}; before, the job of all ranks has failed: {failure}") if failure else explained

    def close(self) -> None:
        with self._lock:
            self._closed = True
            job, self._job = self._job, None
        if job is not None:
            runtime.leave(job)

    def _join(self) -> Job:
        with self._lock:
            if self._closed:
                raise _destroyed()
            if self._job is None:
                self._job = join_group(self._place, _watch_own_job)
            return self._job


def _watch_own_job() -> None:
    """Raises if the process's own job has failed: whoever is waited for may be the one that is lost."""
    failure = _failure_of_own_job()
    if failure:
        raise AbortedError(failure)


def _failure_of_own_job() -> str:
    return runtime.current_job().node.failure() if runtime.is_initialized() else ""


def _destroyed() -> Exception:
    return NotInitializedError("a collective of a process group after destroy_process_group: create the group again")
