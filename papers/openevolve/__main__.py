"""`blis-jax papers openevolve`: routers of a program search, their published numbers again, and on new seeds."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax.commands.options import option
from papers.pages import PartedTableOptions, csv_of, folder_of_tables, rows_of, show, write_text

NAME = "papers.openevolve"
FOLDER = "out/openevolve"
_DESCRIPTION = """\
Run the OpenEvolve example of BLIS, five arms on nine workloads, and the winner that was handed over
with its baselines, on the published seeds and on 20 seeds that no search saw. Print how many published
numbers are equal to the last digit, the scores that follow, and what the arms change by class. The
example's data are read from a folder beside the repository; its Go files, if they are given, are read
by the reader of `blis-jax evolve read`.
"""
_EXAMPLES = """\
examples:
  the tables that come with the package, and the page of results:
    %(prog)s --saved --page docs/results/openevolve.md

  everything again, with the Go files of the search's repository:
    %(prog)s --data ../shared/data/openevolve_blis_router --programs ../skydiscover
"""


class OpenEvolveOptions(
    PartedTableOptions,
    title="what",
    command=NAME,
    description=_DESCRIPTION,
    examples=_EXAMPLES,
):
    """Options of the command."""

    data: str | None = option(
        str, None, "FOLDER",
        "workloads and published numbers (default: ../shared/data/openevolve_blis_router)",
    )  # fmt: skip
    programs: str | None = option(
        str, None, "FOLDER", "Go files of the winner and of the hand-made routers"
    )
    output: str = option(str, FOLDER, "FOLDER", "where tables and runs go")


@OpenEvolveOptions.as_main
def main(options: OpenEvolveOptions) -> int:
    """Run the command; return its exit code."""
    folder = folder_of_tables(NAME, options, options.output)

    from papers.openevolve import experiments, page

    if options.part is not None or not options.saved:
        data = experiments.data_folder(options.data)
        programs = Path(options.programs) if options.programs else None
        groups = list(experiments.groups(data, programs, folder / "programs"))
        wanted = page.asks(groups, folder / "runs")
        if options.part is not None:
            return options.make_part(options.part, wanted)
        options.take_joined(folder, wanted)
        for name, rows in page.make(data, wanted):
            write_text(folder / f"{name}.csv", csv_of(rows))
    rows_by_table = {name: rows_of(folder / f"{name}.csv") for name in page.TABLES}
    show(options, page.printed(rows_by_table), lambda: page.page(rows_by_table), "openevolve.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
