"""`blis-jax sweep`; the command is in `sweeps.sweep.command`.

Importing this module puts it in the place of the function `blis_jax.sweep`, so it can be called like that.
"""

import sys
from types import ModuleType
from typing import Any

from blis_jax import lazy
from blis_jax.commands.door.catalogue import COMMANDS

_functions = lazy.Module("blis_jax.commands.door.functions")
main = COMMANDS["sweep"].main()

__all__ = ["main"]


class _CallableModule(ModuleType):
    def __call__(self, *sources: Any, **settings: Any) -> Any:
        """Return what the function `blis_jax.sweep` does."""
        return _functions.sweep(*sources, **settings)


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main(None))
