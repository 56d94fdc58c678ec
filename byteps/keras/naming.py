"""Names of Keras variables that are the same on all ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

__all__ = ["path_of", "stable_names"]

_AUTOMATIC = re.compile(r"(.+?)(?:_\d+)?")


def path_of(variable: Any) -> str:
    """The path of a Keras variable; the name of a tf.Variable, which has none."""
    return str(getattr(variable, "path", None) or variable.name)


def stable_names(variables: Iterable[Any]) -> list[str]:
    """Names by the variables' paths, each once.

    Keras numbers layers without a name over the whole process: `dense_4/kernel` on one rank is `dense_7/kernel` on
    another that has built another model before. So what follows from such counters is numbered anew, by order of
    appearance: both are `dense/kernel`, and the next one `dense.1/kernel`.
    """
    numbers: dict[str, dict[str, int]] = {}  # of the children of a folder with one base name, by their own names
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
