"""`python -m sweeps.init`; the command is in `sweeps.tracks.command`."""

import sys

from sweeps.tracks.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
