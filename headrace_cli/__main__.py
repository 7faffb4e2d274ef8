"""`python -m headrace`: the command line, where the console script is not on PATH."""

import sys

from headrace_cli.cli import main

if __name__ == "__main__":
    sys.exit(main())
