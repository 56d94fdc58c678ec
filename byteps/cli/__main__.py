import sys

from byteps.cli import main

sys.exit(main())
