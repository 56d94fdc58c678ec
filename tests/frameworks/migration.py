"""Compares docs/migration.md with a package: names exist, or do not, as it says."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
EVERY = "Every module"
_NAME = re.compile(r"`([\w.]+)(?:\(([^)`]*)\))?`")


class Row(NamedTuple):
    names: list[tuple[str, list[str]]]  # with their arguments
    verdict: str


def rows(section: str) -> Iterator[Row]:
    """Yields the rows of the table in that section."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for line in text.splitlines():
        if line.startswith("| `"):
            names, _, verdict = (cell.strip() for cell in line.strip("| ").split(" | ", 2))
            yield Row([(name, list(filter(None, given.split(", ")))) for name, given in _NAME.findall(names)], verdict)


def check_page(module: str) -> None:
    """Raises AssertionError naming all rows of the page that are wrong about that module."""
    package = importlib.import_module(module)
    wrong: list[str] = []
    checked = 0
    for section in (EVERY, module) if module != "byteps.common" else (module,):
        for row in rows(section):
            for name, given in row.names:
                checked += 1
                fault = _fault(package, name, given, row.verdict)
                if fault:
                    wrong.append(f"{section}: {name}: {fault}")
    assert checked and not wrong, "\n".join(wrong)


def _fault(package: Any, name: str, given: list[str], verdict: str) -> str:
    found = _find(package, name)
    if verdict.startswith("not yet"):
        return "" if found is None else "called 'not yet', but it is there"
    if verdict.startswith("other"):
        return ""
    if not verdict.startswith("same"):
        return f"'{verdict}': expected same, other or not yet"
    if found is None:
        return "called the same, but it is not there"
    return _difference(_parameters(found), given) if given else ""


def _find(package: Any, name: str) -> Any:
    *modules, last = name.split(".")
    if modules:
        package = importlib.import_module(".".join((package.__name__, *modules)))
    return getattr(package, last, None)


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Returns the parameters; of the base, if a class passes all on."""
    for each in getattr(function, "__mro__", [function]):
        parameters = list(inspect.signature(each).parameters.values())
        if any(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
            return parameters
    return []


def _difference(ours: list[inspect.Parameter], given: list[str]) -> str:
    places = {parameter.name: place for place, parameter in enumerate(ours)}
    by_place = given.index("*") if "*" in given else len(given)
    for place, argument in enumerate(given):
        if argument == "*":
            continue
        if argument not in places:
            return f"it has no argument {argument}"
        if place < by_place and (places[argument], ours[place].kind) != (
            place,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            return f"the argument {argument} is not number {place}"
    return ""
