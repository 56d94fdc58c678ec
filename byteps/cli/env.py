"""`byteps env`: lists all settings with their values, sources and meanings."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from byteps.cli.table import format_table
from byteps.config import Config, process_environment
from byteps.knob import Knob
from byteps.retired import RETIRED

_INTRODUCTION = """# Environment variables

`byteps env --markdown` writes this page from the table in `byteps/config.py`. `init` reads the variables. `byteps env`
shows the current values and their sources. An empty variable counts as not set.

`bpslaunch` sets all variables that its processes need. Under `torchrun`, `mpirun`, `mpiexec` (MPICH, Intel MPI) and
`srun`, a job of one machine needs no variables. A job of several machines needs `BYTEPS_SECRET_FILE`
([security.md](security.md)), and `MASTER_ADDR` (the host of rank 0) if the launcher does not set it. MPICH's `mpiexec`
has no job id: concurrent jobs on one machine need different `BYTEPS_JOB_ID`s.
"""

_RETIRED = """
## Variables of the original BytePS without effect

Setting one of these to a value other than 0 causes a warning.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("env", help="list settings with values, sources and meanings", description=__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print the page docs/env.md, without values")
    form.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.markdown:
        print(markdown(), end="")
        return 0
    config = Config.parse(process_environment())
    if arguments.json:
        print(json.dumps(as_json(config), indent=2))
        return 0
    rows = [("VARIABLE", "VALUE", "FROM", "MEANING")]
    for field, knob in Config.knobs().items():
        rows.append((_name(field, knob), _value(config, field, knob), config.sources[field], knob.doc))
    print(format_table(rows))
    for warning in config.warnings:
        print(f"warning: {warning}")
    return 0


def as_json(config: Config) -> dict[str, Any]:
    """Returns variable, value, source, unit and meaning of each field, without the secret."""
    return {
        field: {
            "variable": knob.names[0] if knob.names else None,
            "value": _value(config, field, knob) if knob.secret else _json_value(getattr(config, field)),
            "source": config.sources[field],
            "unit": knob.unit,
            "meaning": knob.doc,
        }
        for field, knob in Config.knobs().items()
    }


def _json_value(value: object) -> object:
    return "inf" if value == math.inf else value  # JSON has no such number


def markdown() -> str:
    """Returns the page docs/env.md."""
    lines = [_INTRODUCTION, "| variable | default | unit | meaning |", "|---|---|---|---|"]
    for knob in Config.knobs().values():
        if knob.names:
            lines.append(f"| `{knob.names[0]}` | {_default(knob)} | {knob.unit} | {knob.doc} |")
    lines += [_RETIRED, "| variable | why |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in RETIRED.items()]
    return "\n".join(lines) + "\n"


def _name(field: str, knob: Knob) -> str:
    return knob.names[0] if knob.names else f"({field})"


def _value(config: Config, field: str, knob: Knob) -> str:
    value = getattr(config, field)
    if knob.secret:
        return f"({len(value)} characters)" if value else "-"
    return f"{_text(value)} {knob.unit}".rstrip() if _text(value) != "-" else "-"


def _default(knob: Knob) -> str:
    return "" if _text(knob.default) == "-" else _text(knob.default)


def _text(value: object) -> str:
    """Returns the text of a value as in the environment; "-": not set."""
    match value:
        case bool():
            return str(int(value))
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(str(item) for item in value) or "-"
        case -1 | "":
            return "-"
    return str(value)
