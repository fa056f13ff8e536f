"""`blis-jax surrogate report MODEL DATA.zarr`: how far a surrogate can be trusted, in figures."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax.commands import cli, values
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option
from blis_jax.files.atomic_write import refuse_existing
from surrogate.coverage import MOST_WANTED, PairOptions

NAME = "surrogate.report"

_DESCRIPTION = """\
Compare a surrogate with the test points of its dataset: R² and errors beside what the noise of the
seeds allows, coverage of intervals in the whole space, its best quarter and on the branch, residuals
over every input, and the learning curve. With --seeds-data also coverage for seeds outside the pool.
Writes a folder with report.md, figures and tables.
"""
_EXAMPLES = """\
examples:
  everything; the learning curve fits an ensemble a size:
    %(prog)s out/iter08.surrogate out/iter08.zarr --output out/iter08_report

  without the learning curve:
    %(prog)s out/iter08.surrogate out/iter08.zarr --curve none --output out/iter08_report
"""


class _Report(CommandOptions, title="report"):
    """Options for the parts of the report."""

    output: str | None = option(
        str, None, "FOLDER", "where the report goes (default: MODEL with .report)"
    )
    curve: str | None = option(
        str, None, "A,B,…", "training points of the learning curve (default: halves of halves), or none",
    )  # fmt: skip
    curve_steps: int | None = option(
        values.whole, None, "N", "gradient steps of its ensembles (default: MODEL's)"
    )
    seeds_data: str | None = option(
        str, None, "DATA",
        "runs on seeds outside the pool, .zarr of sweeps.dataset --own-seeds: coverage for any seeds",
    )  # fmt: skip
    main: str | None = option(
        str, None, "METRIC", "the output whose residuals are drawn", shown=MOST_WANTED
    )


class SurrogateReportOptions(
    PairOptions, _Report, OverwriteSwitch,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""


@SurrogateReportOptions.as_main
def main(options: SurrogateReportOptions) -> int:
    """Run the command; return its exit code."""
    folder = Path(options.output or Path(options.model or "model").with_suffix(".report"))
    cli.check_writable(folder, is_folder=True)
    refuse_existing({"--output": folder / "report.md"}, options.overwrite)

    from surrogate.report_tables import make_report

    return make_report(options, folder)


if __name__ == "__main__":
    sys.exit(main())
