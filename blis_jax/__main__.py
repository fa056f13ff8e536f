"""`python -m blis_jax COMMAND …`, the same as `blis-jax COMMAND …`; see `blis_jax.commands.door.dispatch`."""

import sys

from blis_jax.commands.door.dispatch import main

if __name__ == "__main__":
    sys.exit(main())
