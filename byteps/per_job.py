"""What begins anew with each job of this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from byteps.runtime import Job, current_job

__all__ = ["JobNumber", "PerJob"]

T = TypeVar("T")


class PerJob(Generic[T]):
    """Something that begins anew with each job of this process."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._of: tuple[weakref.ref[Job], T] | None = None

    def get(self) -> T:
        """That of the current job.

        Raises:
            NotInitializedError: there is none.
        """
        job = current_job()
        if self._of is None or self._of[0]() is not job:
            self._of = weakref.ref(job), self._make()
        return self._of[1]

    def forget(self) -> None:
        """In a forked child, where a thread of the parent may have been using it."""
        self._of = None

    def __reduce__(self) -> tuple[type[PerJob[T]], tuple[Callable[[], T]]]:
        return PerJob, (self._make,)


class JobNumber:
    """The number of an object among those of its kind: part of the names that ranks meet under.

    Given at the first call of `get` in each job, so from 0 in the order in which a job's ranks first use such objects.
    A process that comes to a job after others have left an earlier one counts as they do. Copies and pickles get
    numbers of their own.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._job: weakref.ref[Job] | None = None
        self._number = 0

    def get(self) -> int:
        """That in the current job.

        Raises:
            NotInitializedError: there is none.
        """
        job = current_job()
        if not self.is_of(job):
            self._job, self._number = weakref.ref(job), job.numbers[self._kind]
            job.numbers[self._kind] += 1
        return self._number

    def is_of(self, job: Job) -> bool:
        """Whether it has been given in that job."""
        return self._job is not None and self._job() is job

    def __reduce__(self) -> tuple[type[JobNumber], tuple[str]]:
        return JobNumber, (self._kind,)
