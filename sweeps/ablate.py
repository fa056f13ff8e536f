"""`python -m sweeps.ablate`; the command is in `sweeps.compare.ablation.command`."""

import sys

from sweeps.compare.ablation.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
