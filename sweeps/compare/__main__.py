"""`blis-jax compare ARM ARM...`: strategies on common seeds, by paired differences per class."""

from __future__ import annotations

import sys
from typing import ClassVar

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, option, words
from blis_jax.commands.options.outputs import ReportOptions
from blis_jax.commands.options.seed_options import DecidingOptions
from sweeps.runs.options import (
    USUAL_ARM,
    ComparisonOptions,
    FitOption,
    SignalsOption,
    check_statistics,
)

NAME = "sweeps.compare"
NUM_DRAWS = 32

_DESCRIPTION = """\
Compare strategies on common requests; the first arm is the reference. Prints, for every class, paired
differences by seed with intervals, verdicts that are corrected for the number of comparisons, the
parts of TTFT, the age from which a sheddable request overtakes a critical one, success criteria, and
the mechanisms that did nothing. An ARM is [LABEL=]STRATEGY[@POINT][:NAME=VALUE[;NAME=VALUE...]]: a strategy
by name or .yaml file, or the .json result of a search, with parameters and settings replaced. Datasets of
blis-jax sweep in place of arms are judged as they are, without a run.
"""
_EXAMPLES = """\
examples:
  which router is best on a trace of your own, and by how much:
    %(prog)s --trace trace.jsonl --routers all "vllm:num_instances=4"

  vLLM's defaults, one setting changed, and a router of your own:
    %(prog)s vllm "small=vllm:max_num_batched_tokens=2048" "mine=vllm:routing_policy=mine.py:NAME"

  a measured server, and a second one beside it:
    %(prog)s one=vllm:num_instances=1 two=vllm:num_instances=2 \\
        --coefficients-from out/calibration.json

  the ledger's best point and its baseline, with another workload and the record's seeds:
    %(prog)s iter00_baseline best=iter08_token_budget@published --workload asymmetric --seeds 42,43,44

  the runs of a sweep that is saved:
    %(prog)s out/sweep.zarr

  one setting changed, its success judged by the criteria of a strategy file:
    %(prog)s iter05_simplified "t1024=iter05_simplified:max_num_batched_tokens=1024" \\
        --criteria iter08_token_budget
"""


class _Routers(CommandOptions, title="routers"):
    """Routers."""

    routers: str | None = option(
        str, None, "LIST", "an arm for each of these routers, all or A,B,…, on the one ARM that "
        f"is given (default: {USUAL_ARM}), and which of them is best; round-robin is the reference",
    )  # fmt: skip


class _Judgement(CommandOptions, title="judgement"):
    """Judgement."""

    criteria: str | None = option(
        str, None, "STRATEGY", "strategy whose success criteria judge all arms (default: each arm's own)",
    )  # fmt: skip
    inert: str | None = option(
        values.OneOf("records", "mechanisms", "scorers"), None, "HOW",
        "how to find mechanisms that did nothing: records looks at the runs; mechanisms also runs each arm "
        "without each mechanism; scorers also without each scorer, which takes several times as long (beside "
        "--routers: records)", shown="mechanisms",
    )  # fmt: skip


class CoefficientOptions(FitOption, title="latency coefficients"):
    """Latency coefficients."""

    usual_draws: ClassVar[int] = NUM_DRAWS
    draws: int | None = option(
        values.whole,
        None,
        "N",
        "draws of the coefficients, with --coefficients-from",
        shown=NUM_DRAWS,
    )


class CompareOptions(
    _Routers, _Judgement, CoefficientOptions, SignalsOption, ComparisonOptions, DecidingOptions, ReportOptions,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    arms: tuple[str, ...] = words("ARM", "two or more; the reference first")


@CompareOptions.as_main
def main(options: CompareOptions) -> int:
    """Run the command; return its exit code."""
    check_statistics(options.confidence, options.bootstrap)
    prepare_backend(use_cache=not options.no_cache)

    from sweeps.compare.command import compare_arms

    return compare_arms(options, options.line())


if __name__ == "__main__":
    sys.exit(main())
