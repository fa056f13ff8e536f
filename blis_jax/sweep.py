"""`python -m blis_jax.sweep`; the command is in `blis_jax.commands.sweep.command`."""

import sys

from blis_jax.commands.sweep.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
