"""`python -m byteps`: the program `byteps`."""

import sys

from byteps.cli import main

sys.exit(main())
