"""`blis-jax papers strategy_evolution`: every row of the scheduling record again, and its figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from papers.record.command import reproduce


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    from papers.strategy_evolution.record import RECORD

    return reproduce(RECORD, arguments)


if __name__ == "__main__":
    sys.exit(main())
