"""Search engines against each other: repeated searches, their best points scored again on fresh seeds.

Every search has a random state and request seeds of its own, and a record, so the command goes on
where it was stopped. All engines' searches of one random state see the same seeds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, option, switch
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from benchmarks.search.plan import Plan
    from blis_jax.runs.driver import Runner
    from sweeps.search.racing import Tried
    from sweeps.strategies.space import Space

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
        --beside benchmarks/results/search_iter08_token_budget_judged.csv

  whether there is a better token budget beside the reference point:
    %(prog)s --scan max_tokens=880:1000
"""


class _What(CommandOptions, title="what"):
    """Options for the strategy to search, the engines and their budgets."""

    strategy: str = option(str, "iter08_token_budget", "NAME", "strategy whose space is searched")
    engines: str = option(str, ENGINES, "A,B,…", "engines to compare")
    repetitions: int = option(cli.at_least(1), 20, "N", "searches with each engine")
    first_repetition: int = option(
        cli.at_least(0), 0, "N", "random state of the first; the others follow"
    )
    calls: int = option(cli.at_least(2), 200, "N", "evaluations of a search")
    initial: int = option(cli.at_least(1), 16, "N", "evaluations before a model is used")
    batch: int = option(cli.at_least(1), 8, "N", "points chosen and run at a time")
    judging_seeds: int = option(
        cli.at_least(2), 256, "N", "seeds of --choose, --report, --ends and --scan"
    )
    beside: Path | None = option(
        Path, None, "TABLE", "judged points of other engines, into --report's table"
    )
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _run, arguments)


def _run(arguments: Sequence[str] | None) -> int:
    options = BenchmarkOptions.read(arguments)
    prepare_backend(use_cache=not options.no_cache)

    from benchmarks.search.judging import choose, searches
    from benchmarks.search.report import report, report_ends
    from benchmarks.search.scan import scan
    from sweeps.strategies.space import space_of

    plan = _plan(options)
    space, num_judging = space_of(plan.strategy), options.judging_seeds
    with cli.writing(plan.folder):
        plan.folder.mkdir(parents=True, exist_ok=True)
    if options.scan is not None:
        return scan(plan, space, options.scan, num_judging)
    if options.choose:
        best = choose(plan, space, list(searches(plan, space)), num_judging)
        print(f"Reference of {plan.strategy.name}: {best['score']:.6g}, {best['found_by']}, chosen from "
              f"{best['chosen_from']} points on seeds {best['seeds']}.")  # fmt: skip
        return 0
    if options.ends is not None:
        return report_ends(plan, space, options.ends, num_judging)
    if options.report:
        return report(plan, space, num_judging, options.beside)
    runner = None
    for repetition in plan.repetitions:
        for engine in plan.engines:
            runner = _searched(plan, space, engine, repetition, runner)
    return 0


def _plan(options: BenchmarkOptions) -> Plan:
    from benchmarks.search.plan import MOST_SEARCHES, Plan, check
    from sweeps.strategies.file import load_strategy

    engines = tuple(name.strip() for name in options.engines.split(","))
    for name in engines:
        check(name)
    strategy = load_strategy(options.strategy)
    budget = {"calls": options.calls, "initial": options.initial, "batch": options.batch}
    search = strategy.search.model_copy(update=budget)
    first = options.first_repetition
    last = first + options.repetitions
    if last > MOST_SEARCHES:
        raise ConfigError(
            f"--first-repetition: the last random state would be {last - 1}, allowed are 0 to "
            f"{MOST_SEARCHES - 1}"
        )
    return Plan(
        strategy.model_copy(update={"search": search}),
        engines,
        range(first, last),
        Path(options.output) / strategy.name,
    )


def _searched(
    plan: Plan, space: Space, engine: str, repetition: int, runner: Runner | None
) -> Runner:
    """One search, from its record on; returns what ran it, whose programs the next one shares."""
    from benchmarks.search.plan import engine_of, experiment_of, record_of
    from benchmarks.search.statistics import ByModel
    from sweeps.search.engines import recommended, recommends
    from sweeps.search.loop import runs_at, search
    from sweeps.search.objectives import Valuation
    from sweeps.search.racing import best_of

    start = time.monotonic()
    strategy = plan.with_search(repetition, engine)
    experiment = experiment_of(strategy, strategy.seeds, runner)
    record = record_of(plan, space, engine, repetition)
    maker = engine_of(space, strategy.search)
    by_model = ByModel(plan, engine, repetition, partial(recommended, maker))

    def note(tried: Sequence[Tried]) -> None:
        if strategy.search.rungs and recommends(maker):
            by_model.at([one.told() for one in tried])

    tried = search(maker, Valuation(strategy), runs_at(space, experiment), record, note)
    best = best_of(tried)
    assert best is not None
    cli.say(
        NAME, f"{engine} {repetition}: best {best.worth.score:.3f} of {len(tried)} points, "
        f"{time.monotonic() - start:.0f} s",
    )  # fmt: skip
    return experiment.runner


if __name__ == "__main__":
    sys.exit(main())
