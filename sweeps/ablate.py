"""`blis-jax ablate ARM --against BASE`: what each component contributes, and how they interact."""

from __future__ import annotations

import sys

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, option, word
from blis_jax.commands.options.outputs import ReportOptions
from blis_jax.errors import ConfigError
from sweeps.runs.options import ComparisonOptions, check_statistics

NAME = "sweeps.ablate"

_DESCRIPTION = """\
Take the difference between two arms apart. The settings in which the arms differ are grouped by
mechanism into components. Each component is switched on alone and left out alone, or all combinations
are run, on common requests. Says what each component contributes to every class, how components
interact, and which of them do nothing. Arms are written as for blis-jax compare.
"""
_EXAMPLES = """\
examples:
  what priorities and whole prompts contribute to the ledger's iteration 5, on 20 seeds:
    %(prog)s iter05_simplified --against iter00_baseline

  the record's 2 x 2 on its three seeds, the bridge counted with the priorities:
    %(prog)s iter05_simplified --against iter00_baseline --seeds 42,43,44 --design full \\
        --components "priority=priority,priority bridge;no chunks=chunks by class"

  single settings, and single scorers, as components:
    %(prog)s iter01_priority_cascade --against iter00_baseline --design pairs \\
        --components "slo scorer=routing_scorers.slo-priority;policy=priority_policy"
"""


class _Design(CommandOptions, title="design"):
    """Design."""

    against: str | None = option(str, None, "BASE", "the arm to start from")
    components: str | None = option(
        str, None, "LIST", "NAME=MEMBER,…;NAME=…: settings, single scorers or usual groups that belong together",
    )  # fmt: skip
    design: str = option(
        values.OneOf("single", "pairs", "full"), "single", "NAME",
        "single: each alone and each left out; pairs: also every two; full: all combinations",
    )  # fmt: skip


class AblateOptions(
    _Design, ComparisonOptions, ReportOptions,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    arm: str | None = word("ARM", "the arm to take apart")


@AblateOptions.as_main
def main(options: AblateOptions) -> int:
    """Run the command; return its exit code."""
    if options.arm is None or options.against is None:
        missing = "ARM, the arm to take apart," if options.arm is None else "--against BASE"
        raise ConfigError(f"{missing} is missing; see --help for examples")
    check_statistics(options.confidence, options.bootstrap)

    prepare_backend(use_cache=not options.no_cache)

    from sweeps.compare.ablation.study import take_apart

    command = options.line()
    return take_apart(options, options.arm, options.against, command)


if __name__ == "__main__":
    sys.exit(main())
