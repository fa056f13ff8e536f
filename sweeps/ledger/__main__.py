"""`python -m sweeps.ledger ACTION`: the record of every iteration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.errors import ConfigError, closest
from sweeps.ledger.options import ACTIONS, NAME, id_of, ledger_of, parser_of
from sweeps.ledger.rows.entry import add, note, plan

EXIT_BROKEN = 1  # a check, a replay or a comparison that did not come out

_DESCRIPTION = """\
The record of every iteration: hypotheses written before their runs, results behind them, in
ledger.jsonl, append-only and chained by hashes; ledger.md is rendered from it.
"""
_EXAMPLES = """\
examples:
  a hypothesis, then its run:
    %(prog)s plan 12 --strategy mine.yaml --hypothesis "Smaller batches halve the wait of critical requests." \\
        --predict "ttft_p99_ms[critical] <= -50%%" --predict "tokens_per_sec in -5..5%%" \\
        --diagnostic "batches are not what critical requests wait for"
    %(prog)s add 12

  what was learned, the state of the search, and a proof that nothing was changed:
    %(prog)s note 12 --findings "..." --resolution "Refuted - wrong mental model"
    %(prog)s status
    %(prog)s check

Each action has its own --help.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _dispatch, arguments)


def _dispatch(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], int]] = {
        "plan": plan,
        "add": add,
        "note": note,
        "render": _render,
        "check": _check,
        "replay": _replay,
        "status": _status,
    }
    if words and words[0] in commands:
        return commands[words[0]](words[1:])
    usage = "%(prog)s ACTION [options]"
    parser = Parser(
        prog=f"python -m {NAME}", usage=usage, description=_DESCRIPTION, epilog=_EXAMPLES
    )
    group = parser.add_argument_group("actions")
    for name, text in ACTIONS.items():
        group.add_argument(name, help=text, nargs="?", metavar=name)
    if not words:
        raise ConfigError(f"no action is given; use one of {', '.join(commands)}, or --help")
    if words[0] in ("-h", "--help"):
        parser.parse_args(["--help"])
    raise ConfigError(
        f"action {words[0]!r} is unknown; use one of {', '.join(commands)}"
        f"{closest(words[0], list(commands))}"
    )


# --- render, check, replay, status ----------------------------------------------------------------


def _render(arguments: list[str]) -> int:
    parser = parser_of("render", "\n--check")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 if ledger.md is not up to date"
    )
    given = parser.given(arguments)
    from sweeps.ledger import render

    ledger = ledger_of(given)
    if "check" in given:
        if ledger.page.exists() and render.rendered(ledger) == render.page_text(ledger):
            print(f"{ledger.page} matches the records")
            return 0
        cli.say(NAME, f"{ledger.page} does not match the records; run render")
        return EXIT_BROKEN
    print(f"Written: {render.write(ledger)}")
    return 0


def _check(arguments: list[str]) -> int:
    parser = parser_of("check", "\n--anchor 3f2a…")
    flag = Flag(
        "anchor", str, None, "HASH", "of a record, kept elsewhere, that must still be there"
    )
    parser.add_flags("check", (flag,))
    given = parser.given(arguments)
    from sweeps.ledger.check import check

    report = check(ledger_of(given), given.get("anchor"))
    for remark in report.remarks:
        print(f"note: {remark}")
    for problem in report.problems:
        cli.say(NAME, f"broken: {problem}")
    if not report.problems:
        print(f"{report.num_records} records, each as it was written")
    return EXIT_BROKEN if report.problems else 0


def _replay(arguments: list[str]) -> int:
    parser = parser_of("replay", "12", has_id=True)
    given = parser.given(arguments)
    name = id_of(given)
    prepare_backend()
    from sweeps.ledger.rows.replay import replay

    found = replay(ledger_of(given), name)
    for text in (*found.changed_arms, *found.other_versions):
        print(f"note: {text}")
    for text in found.differences:
        print(f"differs: {text}")
    same = found.num_figures - len(found.differences)
    if not found.differences:
        print(f"{name}: all {found.num_figures} figures come out again, exactly")
    else:
        count = len(found.differences)
        print(
            f"{name}: {count} differ, by up to {found.largest:.2g} relative; {same} figures compared equal"
        )
    return 0 if found.is_good else EXIT_BROKEN


def _status(arguments: list[str]) -> int:
    parser = parser_of("status", "\n--null-limit 5")
    flags = (
        Flag(
            "null-limit",
            cli.whole,
            None,
            "K",
            "null iterations to stop after (default: the track's)",
        ),
        Flag("objective", str, None, "METRIC", "what the best is best at (default: the track's)"),
    )
    parser.add_flags("status", flags)
    given = parser.given(arguments)
    if given.get("null_limit", 1) < 1:
        raise ConfigError(f"--null-limit must be at least 1, got {given['null_limit']}")
    from sweeps.ledger.status import MARGIN_PERCENT, standing
    from sweeps.runs.metrics import found as known_metric
    from sweeps.runs.metrics import our_name

    ledger = ledger_of(given)
    objective = our_name(given.get("objective", ledger.problem.objective))
    known_metric(objective)
    state = standing(ledger.rows(), objective)
    verdicts = ", ".join(f"{count} {name}" for name, count in state.verdicts.items())
    print(f"{state.num_rows} rows: {verdicts or 'no result yet'}")
    if state.best is None:
        print(f"best {objective}: no row is better than the baseline")
    elif state.best_value is not None and state.baseline_value:
        change = 100 * (state.best_value / state.baseline_value - 1)
        best = state.best
        print(
            f"best {objective}: {state.best_value:.5g} in row {best.id} ({best.hypothesis.name}), "
            f"{change:+.1f} % against the baseline"
        )
    limit, nulls = given.get("null_limit", ledger.problem.stop_after), state.null_iterations
    names = f" ({', '.join(nulls)})" if nulls else ""
    rule = f"stopping rule: {limit}, an improvement is more than {MARGIN_PERCENT:g} %"
    print(f"null iterations in a row: {len(nulls)}{names}; {rule}")
    print("stop: none of them improved anything" if len(nulls) >= limit else "go on")
    for row in state.open_rows:
        print(f"open: {row.id}, {row.hypothesis.statement} (since {row.planned['written']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
