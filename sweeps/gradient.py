"""`python -m sweeps.gradient`; the command is in `sweeps.sensitivity.gradient`."""

import sys

from sweeps.sensitivity.gradient import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
