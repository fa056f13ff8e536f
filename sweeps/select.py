"""`python -m sweeps.select`; the command is in `sweeps.compare.selection.command`."""

import sys

from sweeps.compare.selection.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
