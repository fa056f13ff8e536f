"""`blis-jax papers corrected`: both records with the defects of the reference and without them."""

from __future__ import annotations

import sys

from blis_jax.commands.options import option
from papers.pages import PartedTableOptions, folder_of_tables, rows_of, show

NAME = "papers.corrected"
FOLDER = "out/corrected"
_DESCRIPTION = """\
Compute every claim of both published records on its own seeds and requests twice: as BLIS computes
it, and under the corrected profile, without BLIS's defects. Print each claim with both numbers and
whether it survives, then what time to first token consists of where the defects turn it. Runs are
kept with those of the records, so a command that was stopped goes on where it was.
"""
_EXAMPLES = """\
examples:
  both records under both profiles:
    %(prog)s

  the tables that come with the package:
    %(prog)s --saved

  the page of results, from the tables that come with the package:
    %(prog)s --saved --page docs/results/corrected-record.md
"""


class CorrectedOptions(
    PartedTableOptions,
    title="what",
    command=NAME,
    description=_DESCRIPTION,
    examples=_EXAMPLES,
):
    """Options of the command."""

    output: str = option(str, FOLDER, "FOLDER", "where the two tables go")
    parts: str | None = option(
        str, None, "FOLDER", "where runs are kept (default: where each record keeps its)"
    )


@CorrectedOptions.as_main
def main(options: CorrectedOptions) -> int:
    """Run the command; return its exit code."""
    folder = folder_of_tables(NAME, options, options.output)

    from papers.corrected import page

    if options.part is not None:
        return options.make_part(options.part, page.asks(options.parts))
    if not options.saved:
        page.compute(options, folder)
    claims, parts = (rows_of(folder / name) for name in (page.CLAIMS_FILE, page.PARTS_FILE))
    show(
        options,
        page.printed(claims, parts),
        lambda: page.page(claims, parts),
        "corrected-record.md",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
