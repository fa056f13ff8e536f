"""`python -m sweeps.evaluate`; the command is in `sweeps.search.evaluate.command`."""

import sys

from sweeps.search.evaluate.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
