"""`blis-jax papers router_search`: breed routers without a language model, and judge them on new seeds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.commands import values
from blis_jax.commands.options import option
from blis_jax.lazy import Module
from papers.pages import TableOptions, csv_of, folder_of_tables, rows_of, show, write_text

if TYPE_CHECKING:
    from papers.router_search import contests, page
else:  # they load JAX, for which no refusal waits
    contests, page = (Module(f"papers.router_search.{name}") for name in ("contests", "page"))

NAME = "papers.router_search"
FOLDER = "out/router_search"
SAVED = Path(__file__).parent / "data"
_DESCRIPTION = """\
Breed a router against each of three: the published winner of a program search, it08_opt and row 21 of the
ledger, on their own clusters and workloads. Make the best formula shorter, and judge it on 40 seeds that the
search did not see, by class. The workloads of the published winner are read from a folder beside the
repository; without it, that contest is left out.
"""
_EXAMPLES = """\
examples:
  the tables that come with the package, and the page of results:
    %(prog)s --saved --page docs/results/router-search.md --picture papers/router_search/pictures/curve.png

  the verdicts on the formulas that come with the package again:
    %(prog)s --programs 0

  the searches, too:
    %(prog)s --programs 450
"""


class RouterSearchOptions(
    TableOptions, title="what", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    programs: int = option(
        values.at_least(0),
        450,
        "N",
        "programs of each search; 0 judges the formulas that come with the package again",
    )
    minutes: float = option(
        values.number, 60.0, "M", "minutes after which no further program begins"
    )
    data: str | None = option(
        str, None, "FOLDER",
        "workloads of the published winner (default: ../shared/data/openevolve_blis_router)",
    )  # fmt: skip
    output: str = option(str, FOLDER, "FOLDER", "where tables go")
    picture: str | None = option(str, None, "FILE", "also draw the curves, .png")


@RouterSearchOptions.as_main
def main(options: RouterSearchOptions) -> int:
    """Run the command; return its exit code."""
    folder = folder_of_tables(NAME, options, options.output)
    if not options.saved:
        held = contests.contests(contests.data_folder(options.data), folder)
        if options.programs:
            tables = contests.tables(held, options.programs, 60 * options.minutes)
        else:
            tables = {name: rows_of(SAVED / f"{name}.csv") for name in contests.TABLES}
            tables[contests.VERDICTS] = contests.judged_again(held, tables[contests.FOUND])
        for name, rows in tables.items():
            write_text(folder / f"{name}.csv", csv_of(rows))
    rows_by_table = {name: rows_of(folder / f"{name}.csv") for name in contests.TABLES}
    if options.picture is not None:
        page.draw(rows_by_table, Path(options.picture))
    show(options, page.printed(rows_by_table), lambda: page.page(rows_by_table), page.FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
