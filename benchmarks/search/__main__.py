"""Search engines against each other: repeated searches, their best points scored again on fresh seeds.

Every search has a random state and request seeds of its own, and a record, so the command goes on
where it was stopped. All engines' searches of one random state see the same seeds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.search.plan import MOST_SEARCHES, Plan, bench_of, record_of
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags.shared_options import switches
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
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
    %(prog)s --engines gp --first-repetition 200 --report \\
        --beside benchmarks/results/search_iter08_token_budget_judged.csv

  which part of the engine `ensemble` does the work:
    %(prog)s --engines ensemble-no-networks,ensemble-no-rough --first-repetition 200

  whether there is a better token budget beside the reference point:
    %(prog)s --scan max_tokens=880:1000
"""
_FLAGS = (
    Flag("strategy", str, "iter08_token_budget", "NAME", "strategy whose space is searched"),
    Flag("engines", str, ENGINES, "A,B,…", "engines to compare"),
    Flag("repetitions", cli.at_least(1), 20, "N", "searches with each engine"),
    Flag(
        "first-repetition", cli.at_least(0), 0, "N", "random state of the first; the others follow"
    ),
    Flag("calls", cli.at_least(2), 200, "N", "evaluations of a search"),
    Flag("initial", cli.at_least(1), 16, "N", "evaluations before a model is used"),
    Flag("batch", cli.at_least(1), 8, "N", "points chosen and run at a time"),
    Flag(
        "judging-seeds", cli.at_least(2), 256, "N", "seeds of --choose, --report, --ends and --scan"
    ),
    Flag("beside", Path, None, "TABLE", "judged points of other engines, into --report's table"),
    Flag("ends", Path, None, "TABLE", "score the ends of earlier searches again, from their table"),
    Flag("scan", str, None, "NAME=LOW:HIGH", "scores along a parameter through the reference"),
    Flag("output", str, FOLDER, "FOLDER", "records, tables and figure"),
)
_SWITCHES = {
    "choose": "write the best end so far down as the reference point",
    "report": "score best points again and print the table",
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

    from benchmarks.search.judging import NUM_JUDGING, choose, searches
    from benchmarks.search.report import report, report_ends
    from benchmarks.search.scan import scan
    from sweeps.strategies.space import space_of

    plan = _plan(given)
    space, num_judging = space_of(plan.strategy), given.get("judging_seeds", NUM_JUDGING)
    with cli.writing(plan.folder):
        plan.folder.mkdir(parents=True, exist_ok=True)
    if "scan" in given:
        return scan(plan, space, given["scan"], num_judging)
    if "choose" in given:
        best = choose(plan, space, list(searches(plan, space)), num_judging)
        print(f"Reference of {plan.strategy.name}: {best['score']:.6g}, {best['found_by']}, chosen from "
              f"{best['chosen_from']} points on seeds {best['seeds']}.")  # fmt: skip
        return 0
    if "ends" in given:
        return report_ends(plan, space, given["ends"], num_judging)
    if "report" in given:
        return report(plan, space, num_judging, given.get("beside"))
    runner = None
    for repetition in plan.repetitions:
        for engine in plan.engines:
            runner = _searched(plan, space, engine, repetition, runner)
    return 0


def _plan(given: Mapping[str, Any]) -> Plan:
    from benchmarks.search.engines import check
    from sweeps.strategies.file import load_strategy

    engines = tuple(name.strip() for name in given.get("engines", ENGINES).split(","))
    for name in engines:
        check(name)
    strategy = load_strategy(given.get("strategy", "iter08_token_budget"))
    usual = {"calls": 200, "initial": 16, "batch": 8}
    search = strategy.search.model_copy(
        update={name: given.get(name, value) for name, value in usual.items()}
    )
    first = given.get("first_repetition", 0)
    last = first + given.get("repetitions", 20)
    if last > MOST_SEARCHES:
        raise ConfigError(
            f"--first-repetition: the last random state would be {last - 1}, allowed are 0 to "
            f"{MOST_SEARCHES - 1}"
        )
    return Plan(
        strategy.model_copy(update={"search": search}),
        engines,
        range(first, last),
        Path(given.get("output", FOLDER)) / strategy.name,
    )


def _searched(
    plan: Plan, space: Space, engine: str, repetition: int, runner: Runner | None
) -> Runner:
    """One search, from its record on; returns what ran it, whose programs the next one shares."""
    from benchmarks.search.engines import engine_of
    from benchmarks.search.standing import ByModel
    from sweeps.search.engines import recommended, recommends
    from sweeps.search.loop import runs_at, search
    from sweeps.search.objectives import Valuation
    from sweeps.search.racing import best_of

    start = time.monotonic()
    strategy = plan.with_search(repetition, engine)
    bench = bench_of(strategy, strategy.seeds, runner)
    record = record_of(plan, space, engine, repetition)
    maker = engine_of(space, strategy.search)
    by_model = ByModel(plan, engine, repetition, partial(recommended, maker))

    def note(tried: Sequence[Tried]) -> None:
        if strategy.search.rungs and recommends(maker):
            by_model.at([one.told() for one in tried])

    tried = search(maker, Valuation(strategy), runs_at(space, bench), record, note)
    best = best_of(tried)
    assert best is not None
    cli.say(
        NAME, f"{engine} {repetition}: best {best.worth.score:.3f} of {len(tried)} points, "
        f"{time.monotonic() - start:.0f} s",
    )  # fmt: skip
    return bench.runner


if __name__ == "__main__":
    sys.exit(main())
