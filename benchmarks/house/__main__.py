"""How the house is built: sizes, layers, circles and copies of one idea, each with the number it is to come to.

python -m benchmarks.house           the table in Markdown on stdout
python -m benchmarks.house --write   the same, and into docs/results/house.md between its markers

Nothing is imported and nothing is run, so the command takes a few seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.house import counts
from benchmarks.house.counts import Row
from benchmarks.house.imports import Tree, parsed
from blis_jax.reports.render import table_text
from papers.pages import ROOT, hand_over, table_parser

PAGE = ROOT / "docs" / "results" / "house.md"


def rows(root: Path = ROOT) -> list[Row]:
    """Return all lines of the table."""
    tree = parsed(root)
    of_tree: Sequence[Callable[[Tree], Row]] = (
        counts.function_imports,
        counts.feature_tests,
        counts.step_ladders,
        counts.untyped_options,
        counts.config_fields,
        counts.any_lines,
        counts.narrowings,
        counts.documented,
        counts.repairing_loops,
        counts.jit_sites,
    )
    return [
        *counts.source_lines(root),
        *counts.import_circles(tree),
        *(count(tree) for count in of_tree),
        *(counts.on_one_floor(root, package) for package in ("blis_jax", "sweeps")),
        *counts.layers(tree),
        counts.phase_tests(root),
        counts.readme(root),
        *counts.longest(tree),
    ]


def table(counted: Sequence[Row]) -> str:
    """Return the rows in Markdown."""

    def shown(number: int | None) -> str:
        return "-" if number is None else f"{number:,}"

    rows = ((row.what, shown(row.count), shown(row.target), row.where) for row in counted)
    return table_text(("what", "now", "goal", "what is counted"), rows)


def main(words: Sequence[str] | None = None) -> int:
    """Count and print the table."""
    parser = table_parser("benchmarks.house", __doc__, f"docs/results/{PAGE.name}")
    arguments = parser.parse_args(words)
    return hand_over(table(rows()), PAGE if arguments.write else None, "house")


if __name__ == "__main__":
    sys.exit(main())
