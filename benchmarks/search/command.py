"""Searches of the benchmark as its options say, and what is made of those that are done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from benchmarks.search.judging import (
    FIRST_TO_CHOOSE,
    ByModel,
    choose,
    reference_of,
    scored,
    searches,
)
from benchmarks.search.report import Judging, report, report_ends, report_saved
from benchmarks.search.turbo import MOST_SEARCHES, Plan, check, engine_of, experiment_of, record_of
from blis_jax.commands import cli
from blis_jax.commands.values import number_within
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_csv
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


# --- the scores along one parameter through the reference point ----------------------------------


MOST = 2000  # values


def scan(plan: Plan, space: Space, text: str, num_seeds: int) -> int:
    """Run every whole value `NAME=LOW:HIGH` of a parameter; write a table, print the lowest scores."""
    name, values = _values(space, text)
    table = scores_along(plan, space, name, values, num_seeds)
    path = plan.folder / f"scan_{name}.csv"
    write_csv(path, table)
    last = FIRST_TO_CHOOSE + num_seeds - 1
    print(
        f"{len(table)} values of {name} through the reference point, on seeds {FIRST_TO_CHOOSE} to {last}:"
    )
    print(table.nsmallest(5, "score").to_string(index=False))
    print(f"Written: {path}")
    return 0


def scores_along(
    plan: Plan, space: Space, name: str, values: range, num_seeds: int
) -> pd.DataFrame:
    """Return score and objective at each value, the other parameters as in the reference point."""
    centre, place = reference_of(plan), space.names.index(name)
    points = [(*centre[:place], value, *centre[place + 1 :]) for value in values]
    seeds = range(FIRST_TO_CHOOSE, FIRST_TO_CHOOSE + num_seeds)
    valuation, runs = Valuation(plan.strategy), scored(plan, space, points, seeds)
    worths = [valuation.worth(runs[point]) for point in points]
    return pd.DataFrame({
        name: list(values),
        "score": [worth.score for worth in worths],
        "objective": [sum(worth.objectives) for worth in worths],
    })  # fmt: skip


def _values(space: Space, text: str) -> tuple[str, range]:
    name, _, ends = text.partition("=")
    low_text, _, high_text = ends.partition(":")
    whole = {
        dimension.name: dimension for dimension in space.dimensions if dimension.kind == "integer"
    }
    if name not in whole:
        raise ConfigError(
            f"--scan: {text!r} is not NAME=LOW:HIGH of a whole-number parameter; there are "
            f"{', '.join(whole) or 'none'}"
        )
    low, high = (
        int(number_within(f"--scan: {name}", end, whole[name].low, whole[name].high, True))
        for end in (low_text, high_text)
    )
    if not 0 <= high - low < MOST:
        raise ConfigError(f"--scan: {ends!r} must go up, over at most {MOST} values")
    return name, range(low, high + 1)


# --- searches of the benchmark as its options say ------------------------------------------------


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
    """Run one search, from its record on; return its runner, whose compiled programs the next search shares."""
    start = time.monotonic()
    strategy = plan.with_search(repetition, engine)
    experiment = experiment_of(strategy, strategy.seeds, runner)
    record = record_of(plan, space, engine, repetition)
    maker = engine_of(space, strategy.search)
    by_model = ByModel(plan, engine, repetition, partial(recommended, maker))

    def note(tried: Sequence[Tried]) -> None:
        if strategy.search.rungs and recommends(maker):
            by_model.at([point.told() for point in tried])

    tried = search(maker, Valuation(strategy), runs_at(space, experiment), record, note)
    best = best_of(tried)
    assert best is not None
    cli.say(
        "benchmarks.search", f"{engine} {repetition}: best {best.worth.score:.3f} of {len(tried)} points, "
        f"{time.monotonic() - start:.0f} s",
    )  # fmt: skip
    return experiment.runner
