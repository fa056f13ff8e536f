"""`blis-jax sweep`; the command is in `sweeps.sweep.command`."""

import sys

from blis_jax.commands.door.catalogue import COMMANDS

main = COMMANDS["sweep"].main()

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main(None))
