"""Searches of the benchmark as its options say, and what is made of those that are done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.search.judging import choose, searches
from benchmarks.search.plan import MOST_SEARCHES, Plan, check, engine_of, experiment_of, record_of
from benchmarks.search.report import Judging, report, report_ends, report_saved
from benchmarks.search.scan import scan
from benchmarks.search.statistics import ByModel
from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from sweeps.search.engines import recommended, recommends
from sweeps.search.loop import best_of, runs_at, search
from sweeps.search.objectives import Valuation
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import space_of

if TYPE_CHECKING:
    from benchmarks.search.__main__ import BenchmarkOptions
    from blis_jax.runs.driver import Runner
    from sweeps.search.loop import Tried
    from sweeps.strategies.space import Space


def run_benchmark(options: BenchmarkOptions) -> int:
    """Search, or judge what searches have tried, as the options say; return the exit code."""
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
    judging = Judging(options.within, options.looks)
    if options.saved is not None:
        return report_saved(plan, options.saved, judging)
    if options.report:
        return report(plan, space, num_judging, judging, options.beside)
    runner = None
    for repetition in plan.repetitions:
        for engine in plan.engines:
            runner = _searched(plan, space, engine, repetition, runner)
    return 0


def _plan(options: BenchmarkOptions) -> Plan:
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
        "benchmarks.search", f"{engine} {repetition}: best {best.worth.score:.3f} of {len(tried)} points, "
        f"{time.monotonic() - start:.0f} s",
    )  # fmt: skip
    return experiment.runner
