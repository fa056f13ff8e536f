"""How many evaluations search engines need: repeated searches, censored medians, regret curves.

Every repetition is a search of its own with its own random state, on the same fixed seeds of the
requests, and has its own record, so the command goes on where it was stopped. The best known point
is in `best.json`; a better one that a repetition finds takes its place in the report.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.search.plan import (
    BEST_FILE,
    NUM_SEEDS,
    WITHIN,
    Plan,
    bench_of,
    best_known,
    note_best,
    record_of,
    target,
)
from benchmarks.search.report import report
from benchmarks.search.scan import scan
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags.seed_options import seed_flags, seeds_of
from blis_jax.commands.flags.shared_options import switches
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from sweeps.runs.bench import Bench
    from sweeps.search.loop import Tried

NAME = "benchmarks.search"
FOLDER = "out/benchmark_search"

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

  whether there is a better token budget beside the best known point:
    %(prog)s --scan max_tokens=880:1000

  the report of what there is:
    %(prog)s --report
"""
_FLAGS = (
    Flag("strategy", str, "iter08_token_budget", "NAME", "strategy whose space is searched"),
    Flag("engines", str, "gp,ensemble,random,sobol", "A,B,…", "engines to compare"),
    Flag("repetitions", cli.at_least(1), 20, "N", "searches with each engine"),
    Flag(
        "first-repetition", cli.at_least(0), 0, "N", "random state of the first; the others follow"
    ),
    Flag("calls", cli.at_least(2), 200, "N", "evaluations of a search, at most"),
    Flag("initial", cli.at_least(1), 16, "N", "evaluations before a model is used"),
    Flag("batch", cli.at_least(1), 8, "N", "points chosen and run at a time"),
    *seed_flags(f"default: {NUM_SEEDS}"),
    Flag(
        "within",
        cli.at_least(0, cli.number),
        WITHIN,
        "P",
        "% above the best known score that are near enough",
    ),
    Flag(
        "best", cli.whole, None, "N", "search for the best known point with N evaluations instead"
    ),
    Flag(
        "scan", str, None, "NAME=LOW:HIGH", "scores along a parameter through the best known point"
    ),
    Flag("best-engine", str, "ensemble", "NAME", "the engine of that search"),
    Flag("output", str, FOLDER, "FOLDER", "records, table, curves and figure"),
)
_SWITCHES = {
    "until-target": "stop a search once it is near enough to the best known score",
    "report": "only report what is there",
    **switches("no-cache"),
}


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
    prepare_backend(use_cache="no_cache" not in given)
    plan = _plan(given)
    if "scan" in given:
        return scan(plan, given["scan"])
    if "report" in given:
        return report(plan)
    bench = bench_of(plan)
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
    from sweeps.search.engines import ENGINES
    from sweeps.strategies.file import load_strategy

    engines = tuple(
        name.strip() for name in given.get("engines", "gp,ensemble,random,sobol").split(",")
    )
    for name in engines:
        if name not in ENGINES:
            raise ConfigError(f"--engines: {name!r} is unknown; use some of {', '.join(ENGINES)}")
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
        seeds_of(given, NUM_SEEDS),
        Path(given.get("output", FOLDER)) / strategy.name,
        "until_target" in given,
        given.get("within", WITHIN),
    )


# --- searches -------------------------------------------------------------------------------------


class _ReachedError(Exception):
    """The search has come as near to the best known score as is asked for."""


def _searched(plan: Plan, bench: Bench, engine: str, repetition: int) -> list[Tried]:
    """One search, from its record on."""
    from sweeps.search.engines import make
    from sweeps.search.loop import runs_at, search
    from sweeps.search.objectives import Valuation
    from sweeps.strategies.space import space_of

    strategy = plan.with_search(engine=engine, random_state=repetition)
    space, seen = space_of(strategy), list[Any]()
    goal = target(best_known(plan), plan.within) if plan.is_stopped_at_target else -math.inf

    def watch(tried: Sequence[Tried]) -> None:
        seen[:] = tried
        if min(one.worth.score for one in tried) <= goal:
            raise _ReachedError

    record = record_of(plan, engine, repetition)
    try:
        return search(
            make(space, strategy.search), Valuation(strategy), runs_at(space, bench), record, watch
        )
    except _ReachedError:
        return seen


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


if __name__ == "__main__":
    sys.exit(main())
