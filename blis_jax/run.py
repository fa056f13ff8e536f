"""`python -m blis_jax.run`; the command is in `blis_jax.commands.run.command`."""

import sys

from blis_jax.commands.run.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
