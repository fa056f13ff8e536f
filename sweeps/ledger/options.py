"""What the actions of `python -m sweeps.ledger` share: names, their parser, the ledger they are for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blis_jax.commands.cli import Flag, Parser
from blis_jax.errors import ConfigError

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
_LEDGER = (
    Flag(
        "track", str, None, "NAME", "a track's name or folder (default: the ledger of this folder)"
    ),
)


def parser_of(action: str, examples: str, has_id: bool = False) -> Parser:
    """The parser of one action."""
    about = ACTIONS[action]
    parser = Parser(
        prog=f"python -m {NAME} {action}",
        description=f"{about[0].upper()}{about[1:]}.",
        epilog="examples:\n"
        + "\n".join(f"  %(prog)s {line}".rstrip() for line in examples.split("\n")),
    )
    if has_id:
        parser.add_argument("id", metavar="ID", nargs="?", help="the row, such as 12 or 12-opt")
    parser.add_flags("ledger", _LEDGER)
    return parser


def id_of(given: Mapping[str, Any]) -> str:
    """The row that an action is about."""
    if not given.get("id"):
        raise ConfigError("no row is given; write its id behind the action, such as 12")
    return str(given["id"])


def ledger_of(given: Mapping[str, Any], is_new_allowed: bool = False) -> Ledger:
    """The ledger that an action is about."""
    from sweeps.ledger.book import find_ledger

    return find_ledger(given.get("track"), is_new_allowed)
