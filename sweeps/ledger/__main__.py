"""`python -m sweeps.ledger ACTION`: the record of every iteration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import option, switch
from blis_jax.commands.parser import Parser
from blis_jax.errors import ConfigError, closest
from blis_jax.reports import render
from sweeps.ledger.entry import (
    ACTIONS,
    NAME,
    LedgerOptions,
    RowOptions,
    add,
    described,
    note,
    plan,
    shown_as,
)

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
    """Run the command; return its exit code."""
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


class _RenderOptions(
    LedgerOptions, title="render", command=f"{NAME} render", description=described("render"),
    examples=shown_as("\n--check"),
):  # fmt: skip
    """Options of `render`."""

    check: bool = switch("exit 1 if ledger.md is not up to date")


class _CheckOptions(
    LedgerOptions, title="check", command=f"{NAME} check", description=described("check"),
    examples=shown_as("\n--anchor 3f2a…"),
):  # fmt: skip
    """Options of `check`."""

    anchor: str | None = option(
        str, None, "HASH", "of a record, kept elsewhere, that must still be there"
    )


class _ReplayOptions(
    RowOptions, command=f"{NAME} replay", description=described("replay"), examples=shown_as("12")
):
    """Options of `replay`."""


class _StatusOptions(
    LedgerOptions, title="status", command=f"{NAME} status", description=described("status"),
    examples=shown_as("\n--null-limit 5"),
):  # fmt: skip
    """Options of `status`."""

    null_limit: int | None = option(
        cli.whole, None, "K", "null iterations to stop after (default: the track's)"
    )
    objective: str | None = option(
        str, None, "METRIC", "what the best is best at (default: the track's)"
    )


# --- render, check, replay, status ----------------------------------------------------------------


def _render(arguments: list[str]) -> int:
    options = _RenderOptions.read(arguments)
    from sweeps.ledger.answers import of_page
    from sweeps.ledger.render import page_text, rendered, write

    ledger = options.ledger()
    if options.check:
        if ledger.page.exists() and rendered(ledger) == page_text(ledger):
            render.show_answer(of_page(ledger, is_written=False))
            return 0
        cli.say(NAME, f"{ledger.page} does not match the records; run render")
        return EXIT_BROKEN
    write(ledger)
    render.show_answer(of_page(ledger, is_written=True))
    return 0


def _check(arguments: list[str]) -> int:
    options = _CheckOptions.read(arguments)
    from sweeps.ledger.answers import of_check
    from sweeps.ledger.check import check

    ledger = options.ledger()
    report = check(ledger, options.anchor)
    for problem in report.problems:
        cli.say(NAME, f"broken: {problem}")
    render.show(of_check(report, ledger))
    return EXIT_BROKEN if report.problems else 0


def _replay(arguments: list[str]) -> int:
    options = _ReplayOptions.read(arguments)
    name = options.row()
    prepare_backend()
    from sweeps.ledger.answers import of_replay
    from sweeps.ledger.check import replay

    replayed = replay(options.ledger(), name)
    render.show(of_replay(replayed, name))
    return 0 if replayed.is_good else EXIT_BROKEN


def _status(arguments: list[str]) -> int:
    options = _StatusOptions.read(arguments)
    if options.null_limit is not None and options.null_limit < 1:
        raise ConfigError(f"--null-limit must be at least 1, got {options.null_limit}")
    from sweeps.claims.metrics import known_metric, our_name
    from sweeps.ledger.answers import of_status

    ledger = options.ledger()
    objective = our_name(options.objective or ledger.problem.objective)
    known_metric(objective)
    render.show(of_status(ledger, objective, options.null_limit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
