"""The program `byteps`: shows settings, checks this machine, measures push_pull, plans clusters."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from byteps.cli import bench, doctor, env, plan
from byteps.errors import BytePSError
from byteps.version import package_version

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="byteps", description=__doc__)
    parser.add_argument("--version", action="version", version=f"byteps {package_version()}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for module in (env, doctor, bench, plan):
        module.add_parser(commands)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except BytePSError as error:
        print(f"byteps: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `byteps env | head`
        sys.stderr.close()
        return 141
    return code
