"""The actions that write rows: plan, add, note."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags.seed_options import given_seeds, seed_flags
from blis_jax.commands.flags.stopping_flags import MOST, PRECISION, SWITCHES
from blis_jax.errors import ConfigError
from sweeps.ledger.options import NAME, id_of, ledger_of, parser_of
from sweeps.ledger.rows.vocabulary import CATEGORIES, RESOLUTIONS, SHORT_FAMILIES, TYPES

if TYPE_CHECKING:
    from blis_jax.files.chain import Record
    from sweeps.ledger.book import Ledger

_RUNS = (
    Flag(
        "strategy",
        str,
        None,
        "ARM",
        "STRATEGY[@POINT][:NAME=VALUE;…], as sweeps.strategies.arms reads it",
    ),
    Flag("baseline", str, None, "ARM", "what changes are against (default: the track's)"),
    Flag("reference", str, None, "ARM", "what predictions compare with (default: the baseline)"),
    Flag("workload", str, None, "NAME|FILE", "built-in name or .yaml file (default: the track's)"),
    Flag("rate", cli.number, None, "RPS", "requests per second in place of the workload's"),
    Flag(
        "over", str, None, "NAME=V1,V2,…", "values of a setting, or of rate, for falls, rises, flat"
    ),
    *seed_flags("default: the track's"),
    PRECISION,
    MOST,
    Flag(
        "rng",
        cli.one_of("reference", "jax"),
        None,
        "NAME",
        "who draws the requests (default: the track's)",
    ),
)
_HYPOTHESIS = (
    Flag("hypothesis", str, None, "TEXT", "what is expected, as one sentence"),
    Flag("family", str, "cross-policy", "NAME", ", ".join(SHORT_FAMILIES)),
    Flag("vvuq", str, "Validation", "NAME", ", ".join(CATEGORIES)),
    Flag("type", str, "Dominance", "NAME", ", ".join(TYPES)),
    Flag(
        "mechanism", str, None, "TEXT", "by which mechanism (default: the strategy's description)"
    ),
    Flag("diagnostic", str, None, "TEXT", "what it indicates if the hypothesis fails"),
    Flag("preconditions", str, None, "TEXT", "what must hold for the test to mean anything"),
    Flag("origin", str, None, "TEXT", "where the hypothesis comes from"),
    Flag("name", str, None, "TEXT", "name in the table (default: the strategy's)"),
    Flag(
        "evidence",
        cli.one_of("judge", "published-claim"),
        None,
        "KIND",
        "in place of runs: judge or published-claim",
    ),
)
_PREDICT = (
    "METRIC <= X[%], >= X[%], in LOW..HIGH[%]; or METRIC falls, rises, flat within X% along --over; "
    "may be repeated, the first is the main one"
)


# --- plan, add, note ------------------------------------------------------------------------------


def _values(given: Mapping[str, Any], rng: str) -> dict[str, Any]:
    """The options of a row, as `sweeps.ledger.rows.adding` takes them; `rng` is the track's stream."""
    from sweeps.ledger.rows.adding import KEYS

    values = {key: value for key, value in given.items() if key in KEYS and key != "seeds"}
    seeds = given_seeds(given, given.get("rng", rng))
    return values if seeds is None else values | {"seeds": seeds}


def _add_row_flags(parser: Parser) -> None:
    parser.add_flags("runs", _RUNS)
    parser.add_switches("seeds", SWITCHES)
    parser.add_flags(
        "hypothesis", (*_HYPOTHESIS, Flag("predict", str, None, "CLAIM", _PREDICT, True))
    )


def plan(arguments: list[str]) -> int:
    """Writes a hypothesis down."""
    example = (
        '12 --strategy mine.yaml --hypothesis "…" --predict "ttft_p99_ms[critical] <= -50%%" '
        '--diagnostic "…"'
    )
    parser = parser_of("plan", example, has_id=True)
    _add_row_flags(parser)
    given = parser.given(arguments)
    id_of(given)
    prepare_backend()
    from sweeps.ledger import render
    from sweeps.ledger.rows.adding import hypothesis_from

    ledger = ledger_of(given, is_new_allowed=True)
    row = ledger.plan(hypothesis_from(_values(given, ledger.problem.rng), ledger))
    render.write(ledger)
    record = row.planned
    print(
        f"{row.id}: written as record {record['number']} at {record['written']}, {record['hash']}"
    )
    return 0


def add(arguments: list[str]) -> int:
    """Runs a hypothesis and writes its result, or those of a file."""
    examples = (
        '12\n12 --strategy mine.yaml --hypothesis "…" --predict "…" --diagnostic "…"\n'
        '13 --evidence judge --name "idea 2" --hypothesis "…" --diagnostic "…" --verdict refuted '
        '--findings "…"\n--from rows.yaml'
    )
    parser = parser_of("add", examples, has_id=True)
    _add_row_flags(parser)
    parser.add_flags(
        "result",
        (
            Flag("verdict", str, None, "WORD", "of a row that has no prediction for runs to judge"),
            Flag("findings", str, None, "TEXT", "what was found; later with note"),
            Flag("from", str, None, "FILE", "add all rows of a YAML file that are not there yet"),
        ),
    )
    parser.add_switches("switches", {"no-cache": "compile again"})
    given = parser.given(arguments)
    file = given.pop("from", None)
    if file is None:
        id_of(given)
    elif set(given) - {"track", "no_cache"} - ({"id"} if not given.get("id") else set()):
        raise ConfigError("--from takes the rows of a file; leave the id and the other options out")
    prepare_backend(use_cache="no_cache" not in given)
    ledger = ledger_of(given, is_new_allowed=True)
    return _add_from(ledger, Path(file)) if file is not None else _add_one(ledger, given)


def _add_one(ledger: Ledger, given: Mapping[str, Any]) -> int:
    from sweeps.ledger.rows.adding import add_row, benches_for

    values = _values(given, ledger.problem.rng)
    record = add_row(ledger, values, benches_for(ledger), lambda line: cli.say(NAME, line))
    for line in _lines(ledger, record):
        print(line)
    return 0


def _add_from(ledger: Ledger, file: Path) -> int:
    from sweeps.ledger.rows.adding import add_file, read_rows

    entries = read_rows(file)
    work = progress.begin("adding", len(entries), "rows")

    def tell(line: str) -> None:
        work.clear()
        print(line, flush=True)

    try:
        added = add_file(ledger, entries, tell, work.show)
    except KeyboardInterrupt:
        cli.say(NAME, "rows already added stay; the same command goes on from there")
        raise
    finally:
        work.clear()
    print(f"{added} of {len(entries)} rows added; {ledger.page} is rendered")
    return 0


def _lines(ledger: Ledger, record: Record) -> list[str]:
    """What a result says, for people."""
    from sweeps.tracks.criteria import line_of

    lines = [
        f"{record['id']}: {record['status']} (record {record['number']}, {record['hash'][:12]})"
    ]
    for one in record.get("predictions", ()):
        lines.append(f"  predicted {one['claim']}: {one['status']}; {one['reason']}")
    for slo_class, figures in record.get("comparison", {}).items():
        for name in ("ttft_p99_ms", "goodput_rps", "tokens_per_sec"):
            if name in figures:
                figure = figures[name]
                lines.append(f"  {slo_class} {name}: {_figure(figure)}")
    for text in record.get("broken_constraints", ()):
        lines.append(f"  constraint broken: {text}")
    for one in record.get("criteria", ()):
        words = (one[key] for key in ("criterion", "class", "goal", "verdict", "reason"))
        lines.append(f"  {line_of(*words)}")
    if record.get("criteria_changed"):
        lines.append("  note: the track's criteria have changed since the hypothesis was written")
    return [*lines, f"Written: {ledger.path}, {ledger.page}"]


def _figure(figure: Mapping[str, Any]) -> str:
    value, percent = figure["value"][0], figure["percent"]
    if value is None or percent[0] is None:
        return "no figure" if value is None else f"{value:.5g}"
    around = "" if percent[1] is None else f" [{percent[1]:+.1f}, {percent[2]:+.1f}]"
    return f"{value:.5g}, {percent[0]:+.1f} %{around} {figure['verdict']}"


def note(arguments: list[str]) -> int:
    """Writes findings or a resolution behind a result."""
    parser = parser_of("note", '12 --findings "…" --resolution "Clean confirmation"', has_id=True)
    flags = (
        Flag("findings", str, None, "TEXT", "what was found"),
        Flag("resolution", str, None, "TEXT", "; ".join(RESOLUTIONS)),
    )
    parser.add_flags("note", flags)
    given = parser.given(arguments)
    name = id_of(given)
    content = {key: given[key] for key in ("findings", "resolution") if given.get(key)}
    if not content:
        raise ConfigError("nothing to note; give --findings or --resolution")
    from sweeps.ledger import render

    ledger = ledger_of(given)
    record = ledger.add_note(name, content)
    render.write(ledger)
    print(f"{name}: noted as record {record['number']}, {record['hash'][:12]}")
    return 0
