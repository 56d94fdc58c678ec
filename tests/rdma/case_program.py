"""Runs the cases of a module (functions `case_*`) in the guest, one after the other.

    python case_program.py MODULE FOLDER [CASE...]

Each gets a folder of its own that does not exist yet. {case: traceback or ""} goes to
FOLDER/MODULE.json after each.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

from support.cases import names_of, verdict_of


def main() -> None:
    module_name, folder = sys.argv[1], Path(sys.argv[2])
    module = importlib.import_module(module_name)
    results: dict[str, str] = {}
    for name in sys.argv[3:] or names_of(module_name):
        begin_s = time.monotonic()
        results[name] = verdict_of(getattr(module, f"case_{name}"), folder / name)
        print(f"  {time.monotonic() - begin_s:.1f} s", flush=True)
        (folder / f"{module_name}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
