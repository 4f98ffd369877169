"""`python -m chairlift`: runs the command line."""

import sys

from chairlift.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
