"""`blis-jax optimize STRATEGY`: search a strategy's parameters for the best score."""

from __future__ import annotations

import sys

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import AllSwitch, CommandOptions, option
from blis_jax.commands.options.cluster_flags import InstancesOption
from blis_jax.commands.options.seed_options import CountedRequests, seeds_option
from blis_jax.commands.options.trace_flags import StudyTrace
from sweeps.runs.options import ArmRequests, ResultFiles, SignalsOption, StrategyWord

NAME = "sweeps.optimize"

_DESCRIPTION = """\
Search the parameters of a strategy for the best score: batches of points, each on every seed, in
compiled calls. STRATEGY is a name of the library (sweeps/strategies/library) or the path of a .yaml file.
Writes a result file, a record to resume from, and a figure.
"""
_EXAMPLES = """\
examples:
  the search of the ledger's iteration 8, 40 calls on the reference's requests of seeds 42 to 44:
    %(prog)s iter08_token_budget

  a strategy of your own with another budget and engine:
    %(prog)s mine.yaml --calls 64 --engine sobol --output out/mine.json

  on a trace of your own, in four windows:
    %(prog)s iter08_token_budget --trace trace.jsonl --trace-windows 4

  several objectives; the result has the Pareto front and its hypervolume:
    %(prog)s pareto_classes
"""


class _Budget(CommandOptions, title="budget"):
    """Options that replace the file's `search`."""

    engine: str | None = option(
        str, None, "NAME",
        "denoised, ensemble, gp_minimize, pareto, random, sobol or grid (default: the file's)",
    )  # fmt: skip
    calls: int | None = option(values.whole, None, "N", "points to try (default: the file's)")
    initial: int | None = option(
        values.whole, None, "N", "points before a model is used (default: the file's)"
    )
    batch: int | None = option(
        values.whole, None, "N", "points chosen and run at a time (default: the file's)"
    )
    rungs: tuple[int, ...] | None = option(
        values.wholes, None, "4,16",
        "numbers of seeds after which a point is dropped unless it may be the best (default: the file's)",
    )  # fmt: skip
    random_state: int | None = option(
        values.whole, None, "N", "seed of the search itself (default: the file's)"
    )


class OptimizeOptions(
    StrategyWord, _Budget, InstancesOption, SignalsOption, ArmRequests, CountedRequests, StudyTrace, ResultFiles,
    AllSwitch,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    seeds: str | None = seeds_option("default: the file's")


@OptimizeOptions.as_main
def main(options: OptimizeOptions) -> int:
    """Run the command; return its exit code."""
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.search.command import search_parameters

    return search_parameters(options)


if __name__ == "__main__":
    sys.exit(main())
