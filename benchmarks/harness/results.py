"""Results of measures as JSON, one file each in benchmarks/results/, written after each case."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.harness.alternate import Figures

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Goal:
    """A figure that must reach something."""

    what: str
    value: float | None  # None: its parts are missing
    limit: float
    at_least: bool = False  # else at most

    @property
    def reached(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass
class Case:
    """A table and a plot of the report."""

    name: str
    bound_s: float | None  # None: no bound
    bound: str  # parts of the bound
    figures: Mapping[str, Figures]
    # Size of the tensors of one call, over all ranks; 0: do not compare CPU time.
    gigabytes: float = 0.0
    goals: list[Goal] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    # Bounds of contenders that differ from the common one.
    bounds_s: dict[str, float] = field(default_factory=dict)

    def ratio(self, above: str, below: str) -> float | None:
        """Returns the ratio of two contenders' medians."""
        one, other = self.median_s(above), self.median_s(below)
        return one / other if one and other else None

    def over_bound(self, name: str) -> float | None:
        median, bound = self.median_s(name), self.bounds_s.get(name, self.bound_s)
        return median / bound if median and bound else None

    def cpu_ratio(self, above: str, below: str) -> float | None:
        return self._ratio(above, below, lambda figures: figures.mean_cpu_s)

    def machine_ratio(self, above: str, below: str) -> float | None:
        """As cpu_ratio(), with the packets that the kernel carries while no process runs."""
        return self._ratio(above, below, lambda figures: figures.mean_machine_s)

    def _ratio(self, above: str, below: str, figure: Callable[[Figures], float | None]) -> float | None:
        one, other = (figure(self.figures[name]) if name in self.figures else None for name in (above, below))
        return one / other if one is not None and other else None

    def median_s(self, name: str) -> float | None:
        return self.figures[name].median_s if name in self.figures else None

    def at_most(self, what: str, value: float | None, limit: float) -> None:
        self.goals.append(Goal(what, value, limit))

    def at_least(self, what: str, value: float | None, limit: float) -> None:
        self.goals.append(Goal(what, value, limit, at_least=True))

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("name", "bound_s", "bound", "gigabytes", "notes", "bounds_s")},
            "figures": {name: figures.as_json() for name, figures in self.figures.items()},
            "goals": [asdict(goal) | {"reached": goal.reached} for goal in self.goals],
        }


class Recorder:
    """Records the results of one measure."""

    def __init__(self, measure: str, title: str, show: Callable[[dict[str, Any]], None]) -> None:
        self._measure = measure
        self._show = show
        self._document: dict[str, Any] = {"measure": measure, "title": title, **surroundings(), "cases": []}

    def add(self, case: Case) -> None:
        """Shows the case and writes all results so far, in case the measure is killed later."""
        document = case.as_json() | {"load": os.getloadavg()[0]}
        self._document["cases"].append(document)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self._measure}.json").write_text(json.dumps(self._document, indent=1) + "\n")
        self._show(document)


def surroundings() -> dict[str, Any]:
    """Describes the machine and the time of a run."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _output("git", "describe", "--always", "--dirty", "--abbrev=12"),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": f"{platform.system()} {platform.release()}",
            "congestion control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
            "python": platform.python_version(),
            "torch": _version("torch"),
            "tensorflow": _version("tensorflow", "tensorflow-cpu"),
            "keras": _version("keras"),
            "mxnet": _version_of_mxnet(),
            "OpenMPI": _output("mpirun", "--version").partition("\n")[0],
        },
    }


def _processor() -> str:
    lines = _read("/proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version_of_mxnet() -> str:
    """Returns the version of MXNet, which has its own environment."""
    folders = map(str, (ROOT / ".venv" / "mxnet" / "lib").glob("python*/site-packages"))
    found = {each.name: each.version for each in metadata.distributions(path=list(folders))}
    return f"{found['mxnet']}, numpy {found['numpy']}" if "mxnet" in found else "not installed"


def _version(*packages: str) -> str:
    """Returns the version of the first installed package: some have several names."""
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return "not installed"
