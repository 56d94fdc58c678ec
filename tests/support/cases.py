"""Runs many cases in one job, since starting ranks takes longer than all cases.

A module of cases has functions `case_*`. Every rank runs all of them in the order of definition:

    python cases.py MODULE RESULTS [ADAPTER]

and writes {case: traceback or ""} as JSON to RESULTS. A test module asks `Outcome.check` about one
case at a time.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.job import Finished, run_job


def names_of(module: str) -> list[str]:
    """Returns the cases of a module, including those imported by *, without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    names: list[str] = []
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("case_"):
            names.append(node.name.removeprefix("case_"))
        elif isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
            names += names_of(node.module)
    return names


@dataclass(frozen=True)
class Outcome:
    """The results of a job that ran the cases of a module."""

    finished: list[Finished]
    results: list[Mapping[str, str] | None]  # result by rank; None: the rank did not finish

    def check(self, case: str) -> None:
        """Fails the test unless the case passed on every rank."""
        for finished, result in zip(self.finished, self.results, strict=True):
            if result is None:
                raise AssertionError(
                    f"rank {finished.rank} ended with {finished.returncode} before it could tell:\n{finished.output}"
                )
        texts = [(rank, result[case]) for rank, result in enumerate(self.results) if result is not None]
        failures = [f"rank {rank} of {len(texts)}:\n{text}" for rank, text in texts if text]
        if failures:  # of all ranks: the first one's is often the consequence of another one's
            raise AssertionError("\n".join(failures))

    def check_exit(self) -> None:
        """Fails the test unless every rank ended well."""
        for finished in self.finished:
            assert finished.returncode == 0, f"rank {finished.rank}:\n{finished.output}"


def run_cases(
    module: str,
    ranks: int,
    folder: Path,
    adapter: str = "",
    deadline_s: float = 240,
    env: Mapping[str, str] | None = None,
    *,
    python: str | Path = sys.executable,
) -> Outcome:
    """Runs all cases of `module` in one job of `size` ranks, with `env` in their environment."""
    command = [Path(__file__), module, folder, *filter(None, [adapter])]
    uses_torch = "torch" in module or adapter == "torch"
    finished = run_job(command, ranks, folder, env, deadline_s=deadline_s, uses_torch=uses_torch, python=python)
    paths = [_results_path(folder, rank) for rank in range(ranks)]
    return Outcome(finished, [json.loads(path.read_text()) if path.exists() else None for path in paths])


def _results_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def verdict_of(case: Callable[..., None], *arguments: object) -> str:
    """Runs a case: its traceback, or "" if it passed."""
    print(case.__name__, flush=True)  # tells where a job got stuck
    try:
        case(*arguments)
    except Exception:
        return traceback.format_exc()
    return ""


def _main(module_name: str, folder: str, *adapters: str) -> None:
    import byteps

    arguments = [importlib.import_module(f"frameworks.adapter_{adapter}") for adapter in adapters]
    module = importlib.import_module(module_name)
    byteps.init()
    results = {name: verdict_of(getattr(module, f"case_{name}"), *arguments) for name in names_of(module_name)}
    _results_path(Path(folder), byteps.rank()).write_text(json.dumps(results))
    byteps.shutdown()


if __name__ == "__main__":
    _main(*sys.argv[1:])
