"""Names of Keras variables that are the same on all ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

__all__ = ["path_of", "stable_names"]

_AUTOMATIC = re.compile(r"(.+?)(?:_\d+)?")


def path_of(variable: Any) -> str:
    """Returns the path of a Keras variable, or the name of a tf.Variable, which has no path."""
    return str(getattr(variable, "path", None) or variable.name)


def stable_names(variables: Iterable[Any]) -> list[str]:
    """Returns unique names made from the variables' paths, the same on all ranks.

    Keras numbers unnamed layers over the whole process: `dense_4/kernel` on one rank is
    `dense_7/kernel` on a rank that has built another model before. This function replaces those
    numbers by the order of appearance: the first is `dense/kernel` on both ranks, the next one
    `dense.1/kernel`.
    """
    numbers: dict[str, dict[str, int]] = {}  # name with its folder -> original part -> index
    seen: Counter[str] = Counter()
    names = []
    for variable in variables:
        name = ""
        for part in path_of(variable).split("/"):
            match = _AUTOMATIC.fullmatch(part)
            name = f"{name}/{match[1] if match else part}"
            siblings = numbers.setdefault(name, {})
            number = siblings.setdefault(part, len(siblings))
            name = f"{name}.{number}" if number else name
        seen[name] += 1
        names.append(name[1:] if seen[name] == 1 else f"{name[1:]}#{seen[name]}")
    return names
