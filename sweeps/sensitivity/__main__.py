"""`blis-jax sensitivity STRATEGY`: which parameters matter, for which metric and class."""

from __future__ import annotations

import sys
from typing import ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import AllSwitch, CommandOptions, OutputSwitches, option, switch
from blis_jax.commands.options.seed_options import CountedRequests, seeds_option
from blis_jax.commands.options.trace_flags import StudyTrace
from sweeps.runs.options import ArmRequests, PartOption, StrategyWord

NAME = "sweeps.sensitivity"
FOLDER = "out/sensitivity"
NUM_SEEDS = 8
NUM_ROWS = 128

_DESCRIPTION = """\
Say which parameters of a strategy matter, for every metric and class: Sobol indices with bootstrap
intervals, Morris screening, derivative-based measures, effects of one and of two parameters, and
where the best points are; on the simulator, on a surrogate, or on both with a comparison. STRATEGY
is a name of the library (sweeps/strategies/library) or the path of a .yaml file.
"""
_EXAMPLES = """\
examples:
  the space of the ledger's iteration 8, on 8 common seeds:
    %(prog)s iter08_token_budget

  how much that would simulate:
    %(prog)s iter08_token_budget --plan

  a strategy of your own, more rows, two metrics for every class:
    %(prog)s mine.yaml --base 512 --metrics ttft_p99_ms,tpot_mean_ms --output out/mine

  what matters where chunks are not tiny, and in the best quarter:
    %(prog)s iter08_token_budget --within "best; prefill_crit=64:"

  simulator and surrogate side by side:
    %(prog)s iter08_token_budget --surrogate out/surrogate
"""


class _What(CommandOptions, title="what"):
    """Options for the metrics to study, the models and the region."""

    metrics: str | None = option(
        str, None, "LIST",
        "metrics, each taken of every class (default: TTFT P99 and E2E P99 of every class, throughput, reject "
        "rate)",
    )  # fmt: skip
    surrogate: str | None = option(str, None, "FOLDER", "a surrogate to look at as well")
    model: str | None = option(
        values.OneOf("simulator", "surrogate", "both"), None, "NAME",
        "simulator, surrogate or both (default: both if a surrogate is given)",
    )  # fmt: skip
    within: str = option(
        str, "best", "REGIONS",
        "further regions for total indices: best (the box of the best quarter of the points), none, or "
        "PARAMETER=LOW:HIGH,…; separate several by semicolons",
    )  # fmt: skip


class _Sizes(CommandOptions, title="sizes"):
    """Options for the number of points and seeds."""

    base: int = option(values.whole, NUM_ROWS, "N", "rows of the Saltelli design, a power of two")
    trajectories: int = option(values.whole, 20, "N", "trajectories of the Morris screening")
    gradients: int = option(values.whole, 64, "N", "points that derivatives are taken at")
    levels: int = option(values.whole, 9, "N", "values of a parameter at which its effect is taken")
    bases: int = option(values.whole, 16, "N", "points that an effect is averaged over")
    pairs: int = option(values.whole, 3, "N", "pairs of parameters with a map")
    random_state: int = option(values.whole, 0, "N", "seed of designs and resampling")
    confidence: float = option(values.number, 0.95, "P", "confidence of intervals")
    bootstrap: int = option(values.whole, 1000, "N", "resamples of the rows")


class _Switches(OutputSwitches, title="switches"):
    """Switches that only plan, or leave the figures out."""

    plan: bool = switch("say how much would be simulated, and stop")
    no_figures: bool = switch()


class SensitivityOptions(
    StrategyWord, _What, _Sizes, ArmRequests, CountedRequests, StudyTrace, PartOption, _Switches, AllSwitch,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    usual_seeds: ClassVar[int] = NUM_SEEDS
    folder: ClassVar[str] = FOLDER

    output: str | None = option(str, None, "FOLDER", f"results (default: {FOLDER}/STRATEGY)")
    seeds: str | None = seeds_option(f"default: {NUM_SEEDS}")


@SensitivityOptions.as_main
def main(options: SensitivityOptions) -> int:
    """Run the command; return its exit code."""
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.sensitivity.command import study_parameters

    return study_parameters(options)


if __name__ == "__main__":
    sys.exit(main())
