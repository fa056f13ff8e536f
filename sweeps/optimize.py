"""`python -m sweeps.optimize`; the command is in `sweeps.search.command`."""

import sys

from sweeps.search.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
