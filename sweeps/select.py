"""`blis-jax select`: the best of several arms in one metric, with a stated probability of being right."""

from __future__ import annotations

import sys

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import AllSwitch, CommandOptions, option, words
from blis_jax.commands.options.cluster_flags import InstancesOption
from sweeps.runs.options import FitOption, RequestOptions, ResultFile, check_statistics

NAME = "sweeps.select"
MOST_SEEDS, FRESH_SEEDS, TOLERANCE = 2000, 256, 1.0
_DESCRIPTION = """\
Choose the best of several arms in one metric, with a stated probability of being right (Kim and Nelson's procedure).
All arms serve the same requests on 20 seeds, then on more, and one that is surely worse than another is run no
more. Say how small a difference does not matter: --indifference. With constraints an arm must keep them first. In the
end the winner is compared with the first arm on fresh seeds, which had no part in choosing it. Arms are written as
for blis-jax compare; --search takes the best points of a search.
"""
_EXAMPLES = """\
examples:
  which of three strategies has the shortest tail, differences below 1 ms being none:
    %(prog)s iter00_baseline iter08_token_budget@published iter13_class_lead@found --indifference 1

  the same among those that lose at most 2 %% of the tokens:
    %(prog)s iter00_baseline iter08_token_budget@published iter13_class_lead@found --indifference 1 \\
        --constraint 'output_tokens_per_s>=98%%'

  the five best points of a search, and what it began with:
    %(prog)s iter00_baseline --search out/search.json --finalists 5 --indifference 0.5
"""


class _Choice(CommandOptions, title="choice"):
    """Choice."""

    metric: str = option(
        str, "pooled_ttft_p99_ms[critical]", "METRIC", "metric to choose by, such as output_tokens_per_s",
    )  # fmt: skip
    indifference: float | None = option(
        values.number, None, "X", "differences below it do not matter, in the metric's unit"
    )
    constraint: tuple[str, ...] = option(
        str, (), "BOUND",
        "METRIC<=LIMIT or METRIC>=LIMIT, the limit absolute or in % of the first arm; repeat it",
        is_repeated=True,
    )  # fmt: skip
    tolerance: float = option(
        values.number, TOLERANCE, "P", "a constraint missed by less than P % of its limit may count as kept",
    )  # fmt: skip
    confidence: float = option(values.number, 0.95, "P", "probability of choosing rightly")
    most_seeds: int = option(values.whole, MOST_SEEDS, "N", "the most seeds to choose on")
    fresh_seeds: int = option(
        values.at_least(2), FRESH_SEEDS, "N", "seeds on which the winner is compared in the end"
    )
    search: str | None = option(
        str, None, "FILE", "result of blis-jax optimize whose best points are arms, too"
    )
    finalists: int | None = option(
        values.at_least(1), None, "N", "how many points of the search", shown=5
    )


class SelectOptions(
    _Choice, FitOption, InstancesOption, RequestOptions, ResultFile, AllSwitch,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    arms: tuple[str, ...] = words("ARM", "two or more, or one and --search")


@SelectOptions.as_main
def main(options: SelectOptions) -> int:
    """Run the command; return its exit code."""
    check_statistics(options.confidence)
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.compare.selection import select_best

    return select_best(options)


if __name__ == "__main__":
    sys.exit(main())
