"""Objects that are created again in each job of this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from byteps.runtime import Job, current_job

__all__ = ["JobNumber", "PerJob"]

T = TypeVar("T")


class PerJob(Generic[T]):
    """An object that is created again in each job of this process."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._of: tuple[weakref.ref[Job], T] | None = None

    def get(self) -> T:
        """Returns the object of the current job.

        Raises:
            NotInitializedError: there is no job.
        """
        job = current_job()
        if self._of is None or self._of[0]() is not job:
            self._of = weakref.ref(job), self._make()
        return self._of[1]

    def forget(self) -> None:
        """Forgets the object.

        For forked children, since a thread of the parent may have been using it.
        """
        self._of = None

    def __reduce__(self) -> tuple[type[PerJob[T]], tuple[Callable[[], T]]]:
        return PerJob, (self._make,)


class JobNumber:
    """The number of an object among those of its kind, used in names that all ranks share.

    The first call of `get` in each job assigns it, from 0, so all ranks must first use such objects
    in the same order. Copies and pickles get their own numbers.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._job: weakref.ref[Job] | None = None
        self._number = 0

    def get(self) -> int:
        """Returns the number in the current job.

        Raises:
            NotInitializedError: there is no job.
        """
        job = current_job()
        if not self.is_of(job):
            self._job, self._number = weakref.ref(job), job.numbers[self._kind]
            job.numbers[self._kind] += 1
        return self._number

    def is_of(self, job: Job) -> bool:
        """Whether the number has been assigned in `job`."""
        return self._job is not None and self._job() is job

    def __reduce__(self) -> tuple[type[JobNumber], tuple[str]]:
        return JobNumber, (self._kind,)
