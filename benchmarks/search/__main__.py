"""Search engines against each other: repeated searches, their best points scored again on fresh seeds.

Every search has a random state and request seeds of its own, and a record, so the command goes on
where it was stopped. All engines' searches of one random state see the same seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax.backend import prepare_backend
from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, option, switch

NAME = "benchmarks.search"
FOLDER = "out/benchmark_search"
ENGINES = "ensemble,turbo"

_DESCRIPTION = """\
Repeat searches of a strategy's space with several engines, each search on 16 seeds of its own. The
report scores their best points again on seeds that no search saw, and says how many searches ended
within 1 % of a reference point and after how many evaluations. Goes on where it was stopped.
"""
_EXAMPLES = """\
examples:
  20 searches with each of two engines in iteration 8's space, 200 evaluations each:
    %(prog)s --engines ensemble,turbo --first-repetition 200

  the reference point: the best end so far, chosen on seeds that judge nothing:
    %(prog)s --engines ensemble,turbo --first-repetition 200 --choose

  the table:
    %(prog)s --engines ensemble,turbo --first-repetition 200 --report

  the same with engines whose judged points ship:
    %(prog)s --engines denoised --first-repetition 200 --report \\
        --beside benchmarks/results/search_iter08_token_budget_judged.csv.xz

  the report of judged points that ship, without any search:
    %(prog)s --engines turbo,denoised-raced-expected-recommended --looks 3 \\
        --saved benchmarks/results/search_iter08_token_budget_fresh_judged.csv.xz

  whether there is a better token budget beside the reference point:
    %(prog)s --scan max_tokens=880:1000
"""


class _What(CommandOptions, title="what"):
    """Options for the strategy to search, the engines and their budgets."""

    strategy: str = option(str, "iter08_token_budget", "NAME", "strategy whose space is searched")
    engines: str = option(str, ENGINES, "A,B,…", "engines to compare")
    repetitions: int = option(values.at_least(1), 20, "N", "searches with each engine")
    first_repetition: int = option(
        values.at_least(0), 0, "N", "random state of the first; the others follow"
    )
    calls: int = option(values.at_least(2), 200, "N", "evaluations of a search")
    initial: int = option(values.at_least(1), 16, "N", "evaluations before a model is used")
    batch: int = option(values.at_least(1), 8, "N", "points chosen and run at a time")
    judging_seeds: int = option(
        values.at_least(2), 256, "N", "seeds of --choose, --report, --ends and --scan"
    )
    beside: Path | None = option(
        Path, None, "TABLE", "judged points of other engines, into --report's table"
    )
    saved: str | None = option(
        str, None, "A.csv,B.csv,…", "print the report of judged points that these tables have"
    )
    within: float | None = option(
        float, None, "MS", "what is near enough (default: 1 % of the reference's score)"
    )
    looks: int = option(values.at_least(1), 1, "N", "looks at the pairs that a plan has")
    ends: Path | None = option(
        Path, None, "TABLE", "score the ends of earlier searches again, from their table"
    )
    scan: str | None = option(
        str, None, "NAME=LOW:HIGH", "scores along a parameter through the reference"
    )
    output: str = option(str, FOLDER, "FOLDER", "records, tables and figure")


class BenchmarkOptions(
    _What, title="switches", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    choose: bool = switch("write the best end so far down as the reference point")
    report: bool = switch("score best points again and print the table")
    no_cache: bool = switch()


@BenchmarkOptions.as_main
def main(options: BenchmarkOptions) -> int:
    """Run the command; return its exit code."""
    prepare_backend(use_cache=not options.no_cache)

    from benchmarks.search.command import run_benchmark

    return run_benchmark(options)


if __name__ == "__main__":
    sys.exit(main())
