"""`blis-jax sweep`; the command is in `sweeps.sweep.command`.

Importing this module replaces the function `blis_jax.sweep`, so the module can be called like that function.
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
        """Call the function `blis_jax.sweep`; return its StudyResult."""
        return _functions.sweep(*sources, **settings)


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main(None))
