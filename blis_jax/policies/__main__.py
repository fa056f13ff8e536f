"""`python -m blis_jax.policies`: the reference tables of all policies, in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blis_jax.commands import cli
from blis_jax.policies.reference import page

NAME = "blis_jax.policies"
_DESCRIPTION = """\
Print the reference tables of all policies, with their numbers, as Markdown.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.print_page(NAME, _DESCRIPTION, page, arguments)


if __name__ == "__main__":
    sys.exit(main())
