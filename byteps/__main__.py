"""Runs the program `byteps` as `python -m byteps`."""

import sys

from byteps.cli import main

sys.exit(main())
