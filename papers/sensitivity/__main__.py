"""`blis-jax papers sensitivity`: what matters in the ledger's spaces, by simulator and surrogate."""

from __future__ import annotations

import sys
from typing import ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, SchedulerOption, option, switch
from blis_jax.commands.options.seed_options import SeedOptions, seeds_option
from sweeps.sensitivity.__main__ import NUM_ROWS, NUM_SEEDS

NAME = "papers.sensitivity"
FOLDER = "out/papers_sensitivity"
SPACES = ("iter01_priority_cascade", "iter08_token_budget")

_DESCRIPTION = """\
Take the total indices of the ledger's spaces on the simulator and, where a folder of surrogates is
given, on the surrogate of each space, and print whether they agree within their intervals. A space
is a study of sweeps.sensitivity in OUTPUT; a command that was stopped goes on where it was.
"""
_EXAMPLES = """\
examples:
  the indices that come with the package:
    %(prog)s --saved

  all spaces again, at the size of those:
    %(prog)s

  with the surrogates models/iter01_priority_cascade, models/iter08_token_budget, …:
    %(prog)s --surrogates models
"""


class _What(SeedOptions, title="what"):
    """The spaces, and how they are studied."""

    spaces: str = option(str, ",".join(SPACES), "A,B,…", "strategies whose spaces are looked at")
    surrogates: str | None = option(str, None, "FOLDER", "with a surrogate named as each space")
    base: int | None = option(
        values.whole, None, "N", "rows of the Saltelli design, a power of two", shown=NUM_ROWS
    )
    seeds: str | None = seeds_option(f"default: {NUM_SEEDS}")
    output: str | None = option(str, None, "FOLDER", "where studies and tables go", shown=FOLDER)


class _Switches(CommandOptions, title="switches"):
    """Switches for the parts to make."""

    saved: bool = switch("print what comes with the package, draw it with --output, and stop")
    no_figures: bool = switch()
    no_cache: bool = switch()


class SensitivityPaperOptions(
    _What, _Switches, SchedulerOption, command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    folder: ClassVar[str] = FOLDER


@SensitivityPaperOptions.as_main
def main(options: SensitivityPaperOptions) -> int:
    """Run the command; return its exit code."""
    prepare_backend(use_cache=not options.no_cache)

    from papers.sensitivity.table import make_table

    return make_table(options)


if __name__ == "__main__":
    sys.exit(main())
