"""The actions that write rows, plan, add and note, and what all actions share: their ledger and its options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, option, switch, word
from blis_jax.commands.options.seed_options import SeedOptions, given_seeds, seeds_option
from blis_jax.commands.options.stopping_flags import EnoughSeedsOptions
from blis_jax.commands.parser import OneOf, number
from blis_jax.errors import ConfigError
from blis_jax.reports.render import show, show_answer
from sweeps.claims.words import CATEGORIES, RESOLUTIONS, SHORT_FAMILIES, TYPES

if TYPE_CHECKING:
    from sweeps.ledger.book import Ledger

NAME = "sweeps.ledger"
ACTIONS = {
    "plan": "write a hypothesis down, before it is run",
    "add": "run a hypothesis on common seeds against the baseline, and write its result",
    "note": "write findings or a resolution behind a result",
    "render": "write ledger.md from the records",
    "check": "prove that no record was changed",
    "replay": "run a row again, and compare every number",
    "status": "best row so far, null iterations in a row, open hypotheses",
}


def described(action: str) -> str:
    """Return the description of an action."""
    about = ACTIONS[action]
    return f"{about[0].upper()}{about[1:]}."


def shown_as(examples: str) -> str:
    """Return the examples of an action, a line each, as its help has them."""
    return "examples:\n" + "\n".join(f"  %(prog)s {line}".rstrip() for line in examples.split("\n"))


class LedgerOptions(CommandOptions, title="ledger"):
    """The ledger that an action is about."""

    track: str | None = option(
        str, None, "NAME", "a track's name or folder (default: the ledger of this folder)"
    )

    def ledger(self, is_new_allowed: bool = False) -> Ledger:
        """Return the ledger."""
        from sweeps.ledger.book import find_ledger

        return find_ledger(self.track, is_new_allowed)


class TrackOptions(SeedOptions, title="runs"):
    """Options of what every arm is run on, in place of the problem of a track."""

    baseline: str | None = option(
        str, None, "ARM", "STRATEGY[@POINT][:NAME=VALUE;…], what changes are against (default: the problem's)",
    )  # fmt: skip
    workload: str | None = option(
        str, None, "NAME|FILE", "built-in name or .yaml file (default: the problem's)"
    )
    rate: float | None = option(
        number, None, "RPS", "requests per second in place of the workload's"
    )
    seeds: str | None = seeds_option("default: the problem's")
    rng: str | None = option(
        OneOf("reference", "jax"), None, "NAME", "who draws the requests (default: the problem's)",
    )  # fmt: skip


class RowOptions(LedgerOptions):
    """The row that an action is about."""

    id: str | None = word("ID", "the row, such as 12 or 12-opt")

    def row(self) -> str:
        """Return the row's id.

        Raises:
            ConfigError: none is given.
        """
        if not self.id:
            raise ConfigError("no row is given; write its id behind the action, such as 12")
        return self.id


class _Runs(TrackOptions, title="runs"):
    """Options for the arms to run."""

    strategy: str | None = option(
        str, None, "ARM", "STRATEGY[@POINT][:NAME=VALUE;…], as sweeps.strategies.arms reads it"
    )
    reference: str | None = option(
        str, None, "ARM", "what predictions compare with (default: the baseline)"
    )
    over: str | None = option(
        str, None, "NAME=V1,V2,…", "values of a setting, or of rate, for falls, rises, flat"
    )


class _Hypothesis(CommandOptions, title="hypothesis"):
    """Options for the hypothesis and its predictions."""

    hypothesis: str | None = option(str, None, "TEXT", "what is expected, as one sentence")
    family: str | None = option(str, None, "NAME", ", ".join(SHORT_FAMILIES), shown="cross-policy")
    vvuq: str | None = option(str, None, "NAME", ", ".join(CATEGORIES), shown="Validation")
    type: str | None = option(str, None, "NAME", ", ".join(TYPES), shown="Dominance")
    mechanism: str | None = option(
        str, None, "TEXT", "by which mechanism (default: the strategy's description)"
    )
    diagnostic: str | None = option(str, None, "TEXT", "what it indicates if the hypothesis fails")
    preconditions: str | None = option(
        str, None, "TEXT", "what must hold for the test to mean anything"
    )
    origin: str | None = option(str, None, "TEXT", "where the hypothesis comes from")
    name: str | None = option(str, None, "TEXT", "name in the table (default: the strategy's)")
    evidence: str | None = option(
        cli.one_of("judge", "published-claim"), None, "KIND", "in place of runs: judge or published-claim",
    )  # fmt: skip
    predict: tuple[str, ...] = option(
        str, (), "CLAIM",
        "METRIC <= X[%], >= X[%], in LOW..HIGH[%]; or METRIC falls, rises, flat within X% along --over; may be "
        "repeated, the first is the main one", is_repeated=True,
    )  # fmt: skip


class _Result(CommandOptions, title="result"):
    """The result of a row."""

    verdict: str | None = option(
        str, None, "WORD", "of a row that has no prediction for runs to judge"
    )
    findings: str | None = option(str, None, "TEXT", "what was found; later with note")
    from_: str | None = option(
        str, None, "FILE", "add all rows of a YAML file that are not there yet"
    )


class _NewRow(RowOptions, _Runs, EnoughSeedsOptions, _Hypothesis):
    """A hypothesis and its runs."""

    def values(self, rng: str) -> dict[str, Any]:
        """Return the options of a row, as `sweeps.ledger.adding` takes them; `rng` is the track's stream."""
        from sweeps.ledger.adding import KEYS

        given = self.given().items()
        values = {key: value for key, value in given if key in KEYS and key != "seeds"}
        seeds = given_seeds(self, self.rng or rng)
        return values if seeds is None else values | {"seeds": seeds}


class PlanOptions(
    _NewRow, command=f"{NAME} plan", description=described("plan"),
    examples=shown_as(
        '12 --strategy mine.yaml --hypothesis "…" --predict "ttft_p99_ms[critical] <= -50%%" --diagnostic "…"'
    ),
):  # fmt: skip
    """Options of `plan`."""


class AddOptions(
    _NewRow, _Result, title="switches", command=f"{NAME} add", description=described("add"),
    examples=shown_as(
        '12\n12 --strategy mine.yaml --hypothesis "…" --predict "…" --diagnostic "…"\n'
        '13 --evidence judge --name "idea 2" --hypothesis "…" --diagnostic "…" --verdict refuted '
        '--findings "…"\n--from rows.yaml'
    ),
):  # fmt: skip
    """Options of `add`."""

    no_cache: bool = switch()


class NoteOptions(
    RowOptions, title="note", command=f"{NAME} note", description=described("note"),
    examples=shown_as('12 --findings "…" --resolution "Clean confirmation"'),
):  # fmt: skip
    """Options of `note`."""

    findings: str | None = option(str, None, "TEXT", "what was found")
    resolution: str | None = option(str, None, "TEXT", "; ".join(RESOLUTIONS))


# --- plan, add, note ------------------------------------------------------------------------------


def plan(arguments: list[str]) -> int:
    """Write a hypothesis down; return the exit code."""
    options = PlanOptions.read(arguments)
    options.row()
    prepare_backend()
    from sweeps.ledger import render
    from sweeps.ledger.adding import hypothesis_from
    from sweeps.ledger.answers import of_plan

    ledger = options.ledger(is_new_allowed=True)
    row = ledger.plan(hypothesis_from(options.values(ledger.problem.rng), ledger))
    render.write(ledger)
    show_answer(of_plan(ledger, row))
    return 0


def add(arguments: list[str]) -> int:
    """Run a hypothesis and write its result, or those of a file."""
    options = AddOptions.read(arguments)
    if options.from_ is None:
        options.row()
    elif set(options.given()) - {"track", "no_cache", "from_"}:
        raise ConfigError("--from takes the rows of a file; leave the id and the other options out")
    prepare_backend(use_cache=not options.no_cache)
    ledger = options.ledger(is_new_allowed=True)
    if options.from_ is not None:
        return _add_from(ledger, Path(options.from_))
    from sweeps.ledger.adding import add_row, benches_for
    from sweeps.ledger.answers import of_result

    values = options.values(ledger.problem.rng)
    record = add_row(ledger, values, benches_for(ledger), lambda line: cli.say(NAME, line))
    show(of_result(ledger, record))
    return 0


def _add_from(ledger: Ledger, file: Path) -> int:
    from sweeps.ledger.adding import add_file, read_rows
    from sweeps.ledger.answers import of_file

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
    show_answer(of_file(ledger, added, len(entries)))
    return 0


def note(arguments: list[str]) -> int:
    """Write findings or a resolution behind a result; return the exit code."""
    options = NoteOptions.read(arguments)
    name = options.row()
    both = {"findings": options.findings, "resolution": options.resolution}
    content = {key: text for key, text in both.items() if text}
    if not content:
        raise ConfigError("nothing to note; give --findings or --resolution")
    from sweeps.ledger import render
    from sweeps.ledger.answers import of_note

    ledger = options.ledger()
    record = ledger.add_note(name, content)
    render.write(ledger)
    show_answer(of_note(ledger, name, record))
    return 0
