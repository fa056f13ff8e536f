"""The actions of `blis-jax ledger`: what each does with its options, and the exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options.seed_options import given_seeds
from blis_jax.reports.render import show, show_answer
from sweeps.claims.grammar import known_metric, our_name
from sweeps.ledger import answers
from sweeps.ledger import render as page
from sweeps.ledger.adding import (
    AFTERWARDS,
    KEYS,
    add_file,
    add_row,
    experiments_for,
    hypothesis_from,
    read_rows,
)
from sweeps.ledger.book import Ledger, find_ledger
from sweeps.ledger.check import check as checked
from sweeps.ledger.check import replay as replayed
from sweeps.ledger.entry import (
    NAME,
    AddOptions,
    CheckOptions,
    LedgerReplayOptions,
    NewRowOptions,
    NoteOptions,
    PlanOptions,
    RenderOptions,
    StatusOptions,
    is_runs,
)
from sweeps.ledger.row_parts import runs_to_add, runs_to_replay
from sweeps.ledger.trial import Known

EXIT_BROKEN = 1  # a check, a replay or a comparison that did not come out


def plan(options: PlanOptions) -> int:
    """Write a hypothesis to the ledger."""
    ledger = find_ledger(options.track, is_new_allowed=True)
    row = ledger.plan(hypothesis_from(_values(options, ledger.problem.rng), ledger))
    page.write(ledger)
    show_answer(answers.of_plan(ledger, row))
    return 0


def add(options: AddOptions) -> int:
    """Run a hypothesis, or those of a file, and write the results."""
    ledger = find_ledger(options.track, is_new_allowed=True)
    if options.from_ is not None and not is_runs(options.from_):
        return _add_from(ledger, Path(options.from_))
    values, experiments = _values(options, ledger.problem.rng), experiments_for(ledger)
    if options.part is not None or options.from_ is not None:
        runs = runs_to_add(
            ledger, options.row, {key: values[key] for key in values if key not in AFTERWARDS}
        )
        if options.part is not None:
            show_answer(runs.make_part(options, options.part))
            return 0
        experiments.known = runs.known(Path(options.from_ or ""))
    record = add_row(ledger, values, experiments, lambda line: cli.say(NAME, line))
    show(answers.of_result(ledger, record))
    return 0


def _values(options: NewRowOptions, rng: str) -> dict[str, Any]:
    """Return a row's values from the options, by name; `rng` is the track's random stream."""
    values = {
        key: value for key, value in options.given().items() if key in KEYS and key != "seeds"
    }
    seeds = given_seeds(options, options.rng or rng)
    return values if seeds is None else values | {"seeds": seeds}


def _add_from(ledger: Ledger, file: Path) -> int:
    entries = read_rows(file)
    work = progress.begin("adding", len(entries), "rows")

    def tell(line: str) -> None:
        work.clear()
        cli.say(NAME, line)

    try:
        added = add_file(ledger, entries, tell, work.show)
    except KeyboardInterrupt:
        cli.say(NAME, "rows already added stay; the same command goes on from there")
        raise
    finally:
        work.clear()
    show_answer(answers.of_file(ledger, added, len(entries)))
    return 0


def note(options: NoteOptions) -> int:
    """Write findings or a resolution to a row that has a result."""
    ledger = find_ledger(options.track)
    record = ledger.add_note(options.row, options.content())
    page.write(ledger)
    show_answer(answers.of_note(ledger, options.row, record))
    return 0


def render(options: RenderOptions) -> int:
    """Write the page, or report whether it is up to date."""
    ledger = find_ledger(options.track)
    if options.check:
        if ledger.page.exists() and page.rendered(ledger) == page.page_text(ledger):
            show_answer(answers.of_page(ledger, is_written=False))
            return 0
        cli.say(NAME, f"{ledger.page} does not match the records; run render")
        return EXIT_BROKEN
    saved = ledger.shorten() if options.shorten else 0
    page.write(ledger)
    if saved:
        cli.say(NAME, f"{ledger.path} is {saved:,} bytes shorter; commit {ledger.path.stem}/ too")
    show_answer(answers.of_page(ledger, is_written=True))
    return 0


def check(options: CheckOptions) -> int:
    """Check that no record was changed."""
    ledger = find_ledger(options.track)
    report = checked(ledger, options.anchor)
    for problem in report.problems:
        cli.say(NAME, f"broken: {problem}")
    show(answers.of_check(report, ledger))
    return EXIT_BROKEN if report.problems else 0


def replay(options: LedgerReplayOptions) -> int:
    """Run a row again, and compare every figure with the record."""
    ledger = find_ledger(options.track)
    known: Known = {}
    if options.part is not None or options.from_ is not None:
        runs = runs_to_replay(ledger, options.row)
        if options.part is not None:
            show_answer(runs.make_part(options, options.part))
            return 0
        known = runs.known(Path(options.from_ or ""))
    comparison = replayed(ledger, options.row, known)
    show(answers.of_replay(comparison, options.row))
    return 0 if comparison.is_good else EXIT_BROKEN


def status(options: StatusOptions) -> int:
    """Show the best row so far, and where the track stands."""
    ledger = find_ledger(options.track)
    objective = our_name(options.objective or ledger.problem.objective)
    known_metric(objective)
    show(answers.of_status(ledger, objective, options.null_limit))
    return 0


BY_NAME: dict[str, Callable[[Any], int]] = {
    "plan": plan,
    "add": add,
    "note": note,
    "render": render,
    "check": check,
    "replay": replay,
    "status": status,
}
