"""`blis-jax papers two_tracks`: the winners of both tracks on both tracks' workloads, and which to take where."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax.commands import values
from blis_jax.commands.options import option, switch
from blis_jax.errors import ConfigError
from papers.pages import PartedTableOptions, folder_of_tables, rows_of, show

NAME = "papers.two_tracks"
FOLDER = "out/two_tracks"
_DESCRIPTION = """\
Run the winners of the scheduling track and of the routing track on the workloads of both, on common
requests of seeds that no search saw, and print each with its change against the published optimum.
With the files of other commands, gather what the page of results shows beside it: the track's
ledger, its searches, what the parts contribute, and the regimes of two robustness maps, of which
one builds the decision tree and the other checks it.
"""
_EXAMPLES = """\
examples:
  the joint table:
    %(prog)s

  the tables that come with the package, and the page of results:
    %(prog)s --saved --page docs/results/two-tracks.md

  every table again, from searches, ablations and maps made before:
    %(prog)s --searches out/routing/searches --ablations out/routing/ablations --map out/routing/map.json \\
        --check out/routing/check.json
"""


class TwoTracksOptions(
    PartedTableOptions,
    title="what",
    command=NAME,
    description=_DESCRIPTION,
    examples=_EXAMPLES,
):
    """Options of the command."""

    seeds: int | None = option(
        values.at_least(2), None, "N", "seeds of the joint table (default: 64, from 6000 on)"
    )
    searches: Path | None = option(
        Path, None, "FOLDER", "files of sweeps.optimize, named as their strategies"
    )
    ablations: Path | None = option(
        Path, None, "FOLDER", "files of sweeps.ablate, named as their strategies"
    )
    map: Path | None = option(
        Path, None, "FILE", "robustness map (.json) that the decision tree is built from"
    )
    check: Path | None = option(
        Path, None, "FILE", "robustness map (.json) that the tree is checked on"
    )
    output: str = option(str, FOLDER, "FOLDER", "where the tables go")
    parts: str | None = option(str, None, "FOLDER", "where runs are kept (default: OUTPUT/parts)")
    no_joint: bool = switch("leave the joint table as it is")


@TwoTracksOptions.as_main
def main(options: TwoTracksOptions) -> int:
    """Run the command; return its exit code."""
    if (options.map is None) != (options.check is None):
        raise ConfigError(
            "a tree is built from one map and checked on another; give both --map and --check"
        )
    folder = folder_of_tables(NAME, options, options.output)

    from papers.two_tracks import page, tables

    if options.part is not None:
        return options.make_part(options.part, tables.asks(options, folder))
    if not options.saved:
        tables.make_tables(folder, options)
    rows_by_table = {name: rows_of(folder / f"{name}.csv") for name in page.TABLES}
    show(options, page.printed(rows_by_table), lambda: page.page(rows_by_table), "two-tracks.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
