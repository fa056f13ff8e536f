"""`blis-jax ledger ACTION`: the record of every iteration."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import done
from blis_jax.commands.parser import Parser
from blis_jax.errors import ConfigError, closest
from sweeps.ledger.entry import ACTIONS, NAME, OPTIONS

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
    if words and words[0] in OPTIONS:
        options = OPTIONS[words[0]].read(words[1:])
        options.check_sense()
        prepare_backend(use_cache=options.uses_cache)

        from sweeps.ledger.actions import BY_NAME

        return done(BY_NAME[words[0]], options)
    usage = "%(prog)s ACTION [options]"
    parser = Parser(
        prog=f"python -m {NAME}", usage=usage, description=_DESCRIPTION, epilog=_EXAMPLES
    )
    group = parser.add_argument_group("actions")
    for name, text in ACTIONS.items():
        group.add_argument(name, help=text, nargs="?", metavar=name)
    if not words:
        raise ConfigError(f"no action is given; use one of {', '.join(OPTIONS)}, or --help")
    if words[0] in ("-h", "--help"):
        parser.parse_args(["--help"])
    raise ConfigError(
        f"action {words[0]!r} is unknown; use one of {', '.join(OPTIONS)}"
        f"{closest(words[0], list(OPTIONS))}"
    )


if __name__ == "__main__":
    sys.exit(main())
