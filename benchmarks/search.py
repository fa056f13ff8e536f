"""How many evaluations search engines need: repeated searches, censored medians, regret curves.

Every repetition is a search of its own with its own random state, on the same fixed seeds of the
requests, and has its own record, so the command goes on where it was stopped. The best known point
is in `search_best.json`; a better one that a repetition finds takes its place in the report.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import cli
from blis_jax.atomic_write import replacing, write_json
from blis_jax.cli import Flag, Parser
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from sweeps.bench import Bench
    from sweeps.search import Tried
    from sweeps.strategy_file import Strategy

NAME = "benchmarks.search"
FOLDER = "out/benchmark_search"
BEST_FILE = Path(__file__).with_name("search_best.json")
FIRST_SEED = 42
WITHIN = 1.0  # % above the best known score

_DESCRIPTION = """\
Repeat searches of a strategy's space with several engines and print how many evaluations each needs
to come within 1 % of the best known score: median over repetitions, censored at the budget, with its
interval. Writes a table, regret curves (CSV) and a figure; goes on where it was stopped.
"""
_EXAMPLES = """\
examples:
  20 repetitions of three engines, 200 evaluations each, in iteration 8's space:
    %(prog)s --engines gp,ensemble,random --repetitions 20

  a long search for the best known point, which is written down:
    %(prog)s --best 600

  the report of what there is:
    %(prog)s --report
"""
_FLAGS = (
    Flag("strategy", str, "iter08_token_budget", "NAME", "strategy whose space is searched"),
    Flag("engines", str, "gp,ensemble,random,sobol", "A,B,…", "engines to compare"),
    Flag("repetitions", cli.whole, 20, "N", "searches with each engine"),
    Flag("first-repetition", cli.whole, 0, "N", "random state of the first; the others follow"),
    Flag("calls", cli.whole, 200, "N", "evaluations of a search, at most"),
    Flag("initial", cli.whole, 16, "N", "evaluations before a model is used"),
    Flag("batch", cli.whole, 8, "N", "points chosen and run at a time"),
    Flag("num-seeds", cli.whole, 16, "N", "fixed common seeds of the requests, from 42 on"),
    Flag("within", cli.number, WITHIN, "P", "% above the best known score that are near enough"),
    Flag(
        "best", cli.whole, None, "N", "search for the best known point with N evaluations instead"
    ),
    Flag("best-engine", str, "ensemble", "NAME", "the engine of that search"),
    Flag("output", str, FOLDER, "FOLDER", "records, table, curves and figure"),
)
_SWITCHES = {
    "until-target": "stop a search once it is near enough to the best known score",
    "report": "only report what is there",
    "no-cache": "compile again instead of using programs kept from earlier runs",
}


@dataclass(frozen=True)
class Plan:
    """What is compared, and on what."""

    strategy: Strategy
    engines: tuple[str, ...]
    repetitions: range  # their random states
    num_seeds: int
    folder: Path
    is_stopped_at_target: bool
    within: float  # % of the best known score

    @property
    def calls(self) -> int:
        """The budget of a search."""
        return self.strategy.search.calls

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the requests."""
        return tuple(range(FIRST_SEED, FIRST_SEED + self.num_seeds))

    def record(self, engine: str, repetition: int) -> Path:
        """Where one search writes what it tried."""
        return self.folder / f"{engine}_{repetition:02d}.jsonl"

    def with_search(self, **changes: Any) -> Strategy:
        """The strategy with another way to search it."""
        search = self.strategy.search.model_copy(update=changes)
        return self.strategy.model_copy(update={"search": search, "seeds": self.seeds})


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_flags("what", _FLAGS)
    parser.add_switches("switches", _SWITCHES)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _run, arguments)


def _run(arguments: Sequence[str] | None) -> int:
    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    cli.prepare_backend(use_cache="no_cache" not in given)
    plan = _plan(given)
    if "report" in given:
        return report(plan)
    bench = _bench(plan)
    with cli.writing(plan.folder):
        plan.folder.mkdir(parents=True, exist_ok=True)
    if "best" in given:
        return _search_best(plan, bench, given["best"], given.get("best_engine", "ensemble"))
    for repetition in plan.repetitions:
        for engine in plan.engines:
            start = time.monotonic()
            tried = _searched(plan, bench, engine, repetition)
            best = min(one.worth.score for one in tried)
            cli.say(
                NAME, f"{engine} {repetition}: best {best:.3f} of {len(tried)} evaluations, "
                f"{time.monotonic() - start:.0f} s",
            )  # fmt: skip
    return report(plan)


def _plan(given: Mapping[str, Any]) -> Plan:
    from sweeps.engines import ENGINES
    from sweeps.strategy_file import load_strategy

    engines = tuple(
        name.strip() for name in given.get("engines", "gp,ensemble,random,sobol").split(",")
    )
    for name in engines:
        if name not in ENGINES:
            raise ConfigError(f"--engines: {name!r} is unknown; use some of {', '.join(ENGINES)}")
    for name, least in (
        ("within", 0),
        ("first_repetition", 0),
        ("repetitions", 1),
        ("calls", 2),
        ("initial", 1),
        ("batch", 1),
        ("num_seeds", 1),
    ):
        if given.get(name, least) < least:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag}: got {given[name]}, allowed is {least} or more")
    strategy = load_strategy(given.get("strategy", "iter08_token_budget"))
    search = strategy.search.model_copy(
        update={
            "calls": given.get("calls", 200),
            "initial": given.get("initial", 16),
            "batch": given.get("batch", 8),
        }
    )
    first = given.get("first_repetition", 0)
    return Plan(
        strategy.model_copy(update={"search": search}),
        engines,
        range(first, first + given.get("repetitions", 20)),
        given.get("num_seeds", 16),
        Path(given.get("output", FOLDER)) / strategy.name,
        "until_target" in given,
        given.get("within", WITHIN),
    )


def _bench(plan: Plan) -> Bench:
    from sweeps.bench import Bench, measure_of, targets_of, workload_of
    from sweeps.objectives import Valuation

    spec = workload_of(plan.strategy)
    measure = measure_of(targets_of(plan.strategy), spec)
    names = Valuation(plan.strategy).names
    batch = plan.strategy.search.batch
    return Bench(spec, plan.seeds, "reference", names, measure, batch)


# --- searches -------------------------------------------------------------------------------------


class _ReachedError(Exception):
    """The search has come as near to the best known score as is asked for."""


def _searched(plan: Plan, bench: Bench, engine: str, repetition: int) -> list[Tried]:
    """One search, from its record on."""
    from sweeps.engines import make
    from sweeps.objectives import Valuation
    from sweeps.search import runs_at, search
    from sweeps.space import space_of

    strategy = plan.with_search(engine=engine, random_state=repetition)
    space, seen = space_of(strategy), list[Any]()
    goal = target(best_known(plan), plan.within) if plan.is_stopped_at_target else -math.inf

    def watch(tried: Sequence[Tried]) -> None:
        seen[:] = tried
        if min(one.worth.score for one in tried) <= goal:
            raise _ReachedError

    record = _record(plan, engine, repetition)
    try:
        return search(
            make(space, strategy.search), Valuation(strategy), runs_at(space, bench), record, watch
        )
    except _ReachedError:
        return seen


def _record(plan: Plan, engine: str, repetition: int) -> Any:
    from sweeps.search import Record, identity_of

    search = plan.with_search(engine=engine, random_state=repetition).search
    parts = [plan.strategy.name, search.model_dump(exclude={"calls"}), plan.seeds]
    return Record(plan.record(engine, repetition), identity_of(parts))


def _search_best(plan: Plan, bench: Bench, calls: int, engine: str) -> int:
    """A long search, whose best point is written down if it is better than what is known."""
    from dataclasses import replace

    longer = replace(plan, strategy=plan.with_search(calls=calls), is_stopped_at_target=False)
    longer = replace(longer, folder=plan.folder / f"best_{calls}")
    longer.folder.mkdir(parents=True, exist_ok=True)
    tried = _searched(longer, bench, engine, 1000)
    best = min(tried, key=lambda one: one.worth.score)
    note_best(plan, best.worth.score, list(best.point), f"{engine}, {calls} evaluations")
    print(f"Best score {best_known(plan):.6g}, in {BEST_FILE.name}.")
    return 0


def _key(plan: Plan) -> str:
    return f"{plan.strategy.name}, seeds {plan.seeds[0]} to {plan.seeds[-1]}"


def best_known(plan: Plan) -> float:
    """The lowest score that is written down; infinite if none is."""
    found = json.loads(BEST_FILE.read_text()) if BEST_FILE.exists() else {}
    return float(found.get(_key(plan), {}).get("score", math.inf))


def note_best(plan: Plan, score: float, point: list[Any], found_by: str) -> None:
    """Writes a point down if it is better than the one that is there."""
    if score >= best_known(plan):
        return
    document = json.loads(BEST_FILE.read_text()) if BEST_FILE.exists() else {}
    document[_key(plan)] = {"score": score, "point": point, "found_by": found_by}
    write_json(BEST_FILE, document)


def target(best: float, within: float = WITHIN) -> float:
    """The score that is so many % above the best one."""
    return best + within / 100 * abs(best)


# --- report ---------------------------------------------------------------------------------------


def running_best(plan: Plan, engine: str) -> list[np.ndarray]:
    """The best score by evaluation of each repetition that is there."""
    import numpy as np

    from sweeps.objectives import Valuation

    valuation, curves = Valuation(plan.strategy), []
    for repetition in plan.repetitions:
        if not plan.record(engine, repetition).exists():
            continue
        entries = _record(plan, engine, repetition).read()
        scores = [valuation.worth(runs).score for _, runs in entries]
        if scores:
            curves.append(np.minimum.accumulate(scores))
    return curves


def is_finished(plan: Plan, curve: np.ndarray, goal: float) -> bool:
    """Whether a search used its budget, or stopped since it was near enough."""
    return len(curve) >= plan.calls or bool(curve[-1] <= goal)


def report(plan: Plan) -> int:
    """Table, curves and figure of the searches that are there."""
    import pandas as pd

    from benchmarks.search_figure import draw
    from benchmarks.search_statistics import regret_table

    curves = {engine: running_best(plan, engine) for engine in plan.engines}
    lowest = [float(curve[-1]) for found in curves.values() for curve in found]
    if not lowest:
        raise ConfigError(f"{plan.folder} has no searches yet; leave --report out to make some")
    best = min(best_known(plan), *lowest)
    goal = target(best, plan.within)
    finished = {
        engine: [curve for curve in found if is_finished(plan, curve, goal)]
        for engine, found in curves.items()
    }
    rows = [_row(engine, found, goal, plan.calls) for engine, found in finished.items() if found]
    table = pd.DataFrame(rows)
    _write(plan, "summary.csv", table)
    _write(plan, "regret.csv", regret_table(finished, best, plan.calls))
    print(f"{plan.strategy.name}, {plan.num_seeds} fixed seeds, at most {plan.calls} evaluations; best "
          f"known score {best:.4f}, within {plan.within:g} % is {goal:.4f}.")  # fmt: skip
    print(table.to_string(index=False))
    _print_ratio(table)
    figure = plan.folder / "regret.png"
    draw(finished, best, plan.calls, figure, plan.strategy.name, plan.num_seeds, plan.within)
    print(f"Written: {plan.folder / 'summary.csv'}, {plan.folder / 'regret.csv'}, {figure}")
    return 0


def _row(engine: str, curves: Sequence[np.ndarray], goal: float, calls: int) -> dict[str, Any]:
    import numpy as np

    from benchmarks.search_statistics import median_interval, needed

    counts = [needed(curve, goal) for curve in curves]
    middle, low, high = median_interval(counts)
    return {
        "engine": engine,
        "repetitions": len(curves),
        "reached": int(np.isfinite(counts).sum()),
        "median_needed": _censored(middle, calls),
        "low": _censored(low, calls),
        "high": _censored(high, calls),
        "median_final_score": round(float(np.median([curve[-1] for curve in curves])), 4),
    }


def _censored(count: float, calls: int) -> str:
    if math.isnan(count):
        return "–"
    return f">{calls}" if math.isinf(count) else f"{count:g}"


def _print_ratio(table: pd.DataFrame) -> None:
    """The bar: the ensemble's median against half of the Gaussian process'."""
    medians = dict(zip(table["engine"], table["median_needed"], strict=True))
    if {"gp", "ensemble"} <= set(medians):
        print(
            f"Median evaluations, ensemble against gp: {medians['ensemble']} against {medians['gp']}."
        )


def _write(plan: Plan, name: str, table: pd.DataFrame) -> None:
    with cli.writing(plan.folder / name), replacing(plan.folder / name) as written:
        table.to_csv(written, index=False)


if __name__ == "__main__":
    sys.exit(main())
