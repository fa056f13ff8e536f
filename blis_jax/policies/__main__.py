"""`python -m blis_jax.policies`: the reference tables of all policies, in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blis_jax.commands import cli
from blis_jax.commands.cli import Parser
from blis_jax.policies.reference import page

NAME = "blis_jax.policies"
_DESCRIPTION = """\
Print the reference tables of all policies, with their numbers, as Markdown.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _policies, arguments)


def _policies(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION)
    parser.given(sys.argv[1:] if arguments is None else arguments)
    print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
