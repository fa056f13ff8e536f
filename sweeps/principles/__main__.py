"""`blis-jax principles`: run the catalogue's checks, or hold a strategy against them."""

from __future__ import annotations

import sys
from typing import ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands.options import AllSwitch, CommandOptions, PlainSwitches, option, switch
from blis_jax.commands.options.seed_options import DrawnOptions, seeds_option
from sweeps.principles import USUAL_OUTPUT

NAME = "sweeps.principles"
LEAST_SEEDS = 3

_DESCRIPTION = """\
Run the 30 principles and 11 prior findings of the strategy search, and 6 further candidates, as
experiments. Each compares configurations on common seeds and says whether it holds, holds less
widely, or is not supported. Entries whose policies are not registered are untested. Every check that
was made is kept beside the output and is not made again until the code, the entry or the seeds change.
"""
_EXAMPLES = """\
examples:
  all checks, about ten minutes on two cores, seconds when nothing has changed:
    %(prog)s

  some of them on more seeds:
    %(prog)s --only RP-10,S7 --seeds 10

  which principles a strategy relies on or contradicts, and what leaving them out would change:
    %(prog)s --strategy iter05_simplified
    %(prog)s --strategy "joint_all_layers:gate=50" --measure
"""


class _Checks(DrawnOptions, title="checks"):
    """Options for the checks to make, and their seeds."""

    only: str | None = option(str, None, "ID,ID,…", "entries to check (default: all)")


class _Strategy(CommandOptions, title="strategies"):
    """The strategy that is held against the catalogue."""

    strategy: str | None = option(
        str, None, "ARM", "strategy to hold against the catalogue: [LABEL=]STRATEGY[@POINT][:NAME=VALUE;…]",
    )  # fmt: skip
    measure: bool = switch("also run the strategy without the setting that a finding is about")


class _Switches(PlainSwitches, title="switches"):
    """Switches that list the entries, add the slow checks, or make all checks again."""

    list: bool = switch("print the entries and end")
    slow: bool = switch("also run what takes minutes: the searches of S3")
    overwrite: bool = switch("make all checks again")


class PrinciplesOptions(
    _Checks, _Strategy, _Switches, AllSwitch,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    fewest_seeds: ClassVar[int] = LEAST_SEEDS
    seeds: str | None = seeds_option(
        "at least 3; a number begins with each entry's first seed; default: each entry's"
    )
    output: str | None = option(str, None, "PATH", f"result, .json (default: {USUAL_OUTPUT})")


@PrinciplesOptions.as_main
def main(options: PrinciplesOptions) -> int:
    """Run the command; return its exit code."""
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.principles.command import check_principles

    return check_principles(options)


if __name__ == "__main__":
    sys.exit(main())
