"""Jobs of cases (support/cases.py) as tests. A job runs once, when its first test needs it.

JOBS = jobs_of({ops_cases: (1, 2)})

@each_case(JOBS)
def test_case(job: CaseJob, case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check(case)

@each_job(JOBS)
def test_every_rank_exits_well(job: CaseJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome_of(job, tmp_path_factory).check_exit()
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from support.cases import Outcome, names_of, run_cases

_outcomes: dict[CaseJob, Outcome | str] = {}  # or why there is none


@dataclass(frozen=True)
class CaseJob:
    """The cases of a module, run by so many ranks."""

    module: str  # dotted name of the module
    ranks: int
    adapter: str = ""  # argument of the cases
    python: Path = Path(sys.executable)
    env: tuple[tuple[str, str], ...] = ()  # added to the environment
    deadline_s: float = 240

    @property
    def id(self) -> str:
        name = self.adapter or self.module.rpartition(".")[2].removesuffix("_cases")
        other = "" if self.python == Path(sys.executable) else f"-{self.python.parents[1].name}"
        return f"{name}-{self.ranks}-ranks{other}"


def jobs_of(ranks: Mapping[ModuleType | str, Sequence[int]], *, deadline_s: float = 240, **env: str) -> list[CaseJob]:
    """A job for each module and number of ranks.

    One rank and three are enough: averages of three are not exact. Four, where cases share batches
    among them.

    Args:
        ranks: by module, or by its dotted name if this process should not import it.
        deadline_s: of each job.
        env: added to their environment.
    """
    names = {module if isinstance(module, str) else module.__name__: counts for module, counts in ranks.items()}
    settings = tuple(env.items())
    return [
        CaseJob(name, count, env=settings, deadline_s=deadline_s) for name, counts in names.items() for count in counts
    ]


def each_case(jobs: Sequence[CaseJob]) -> pytest.MarkDecorator:
    pairs = [(job, case) for job in jobs for case in names_of(job.module)]
    return pytest.mark.parametrize(("job", "case"), pairs, ids=[f"{job.id}-{case}" for job, case in pairs])


def each_job(jobs: Sequence[CaseJob]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("job", jobs, ids=[job.id for job in jobs])


def outcome_of(job: CaseJob, folders: pytest.TempPathFactory) -> Outcome:
    """Returns the outcome of a job, which runs now if it has not run. The test fails if it does not end."""
    if job not in _outcomes:
        try:
            _outcomes[job] = run_cases(
                job.module,
                job.ranks,
                folders.mktemp("job"),
                job.adapter,
                job.deadline_s,
                dict(job.env),
                python=job.python,
            )
        except AssertionError as error:  # it hangs: do not try again
            _outcomes[job] = f"the job {job.id} did not end; the first test of it that failed shows its output"
            pytest.fail(str(error), pytrace=False)
    outcome = _outcomes[job]
    if isinstance(outcome, str):
        pytest.fail(outcome, pytrace=False)
    return outcome
