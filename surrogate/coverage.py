"""`python -m surrogate.coverage MODEL DATA.zarr`: do the intervals hold as often as they say?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option, word, words
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from surrogate.regions import BEST, BRANCH, REGIONS, WHOLE

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.data import Data
    from surrogate.predictor import Surrogate

NAME = "surrogate.coverage"

_DESCRIPTION = """\
Count on the test points of a dataset how often means over the seeds, and single runs, lie in their
intervals, and test each count against the confidence (exact binomial test, two-sided). Calibration
points are finite in number, so that true coverage varies about the confidence: the last column tests
against that variation too (beta-binomial). The dataset is that of the fit, or one with other points of
the same space on the same seeds (sweeps.dataset with another --random-state).
"""
_EXAMPLES = """\
examples:
  90 %% intervals, the test at 1 %%:
    %(prog)s out/iter08.surrogate out/iter08.zarr

  on points that nobody has looked at:
    %(prog)s out/iter08.surrogate out/fresh.zarr

  80 %% intervals, the counts as a table:
    %(prog)s out/iter08.surrogate out/iter08.zarr --confidence 0.8 --output coverage.csv
"""


class _Test(CommandOptions, title="test"):
    """Options for the levels of the test, and for its table."""

    confidence: float = option(cli.number, 0.9, "P", "confidence of the intervals")
    level: float = option(cli.number, 0.01, "P", "significance level of the test")
    output: str | None = option(str, None, "PATH", "table to write, .csv")


class PairOptions(CommandOptions):
    """A surrogate and its dataset."""

    model: str | None = word("MODEL", "folder of surrogate.train")
    data: tuple[str, ...] = words("DATA", "dataset, .zarr, or saved sweeps")

    def pair(self, allows_fresh: bool = False) -> tuple[Surrogate, Data]:
        """Return the surrogate and its dataset, see `read_pair`; both must be given."""
        if self.model is None or not self.data:
            raise ConfigError(
                "give a surrogate and a dataset: the folder of surrogate.train, then the .zarr of "
                "sweeps.dataset or blis_jax.sweep"
            )
        return read_pair(Path(self.model), *map(Path, self.data), allows_fresh=allows_fresh)


class CoverageOptions(
    PairOptions, _Test, OverwriteSwitch,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _coverage, arguments)


def _coverage(arguments: Sequence[str] | None) -> int:
    options = CoverageOptions.read(arguments)
    confidence, level = options.confidence, options.level
    for name, value in (("confidence", confidence), ("level", level)):
        if not 0 < value < 1:
            raise ConfigError(f"--{name}: got {value:g}, allowed is between 0 and 1")
    out = None
    if options.output is not None:
        out = output_path(options.output, "--output", (".csv",), options.overwrite)
    surrogate, data = options.pair(allows_fresh=True)
    with progress.phase("counting"):
        table = coverage_table(surrogate, data, confidence)
        regions = regions_table(surrogate, data, confidence)
    if out is not None:
        write_table(table, out)
    answer = Answer.of(
        f"Do the intervals of {options.model} cover as often as they say?",
        verdict_lines(table, confidence, level),
        f"binomial tests on {int(table['points'].max())} points of test.",
        "nothing was simulated.",
        "--output FILE.csv keeps the table." if out is None else f"Written: {out}",
    )
    render.show_answer(answer, "\n".join(lines(table, level)), "\n".join(region_lines(regions)))
    return 0


def read_pair(model: Path, *sources: Path, allows_fresh: bool = False) -> tuple[Surrogate, Data]:
    """Return a surrogate and the dataset that it was fitted to; another one is refused.

    With `allows_fresh`, one with other points of the same space and workload on the same seeds will do.
    """
    from surrogate.store import read_about

    about = read_about(model)["about"]
    from surrogate.data import load_all
    from surrogate.predictor import Surrogate

    data = load_all(sources)
    is_same = about.get("data_identity") == data.about
    is_alike = data.population != "" and about.get("data_population") == data.population
    if not is_same and not (allows_fresh and is_alike):
        raise ConfigError(
            f"{model} was fitted to another dataset than {sources[0]} ({about.get('data')} against "
            f"{data.name}, or other sizes, seeds or points); give the one it was fitted to"
            + (
                ", or one with other points of the same space on the same seeds"
                if allows_fresh
                else ""
            )
        )
    return Surrogate.load(model), data


def coverage_table(
    surrogate: Surrogate, data: Data, confidence: float, region: str = "whole space"
) -> pd.DataFrame:
    """Return counts and p-values on a region's test points, one line per output and kind of interval."""
    import pandas as pd

    from surrogate.scores import coverages, p_value, p_value_finite

    rows = []
    of_point = surrogate.calibration.region
    if region == WHOLE:
        num_calibration = int((of_point != REGIONS.index(BRANCH)).sum())
    else:
        num_calibration = int((of_point == REGIONS.index(region)).sum())
    for output, kind, covered, num_points in coverages(surrogate, data, confidence, region):
        rows.append(
            {
                "output": output,
                "interval": kind,
                "covered": covered,
                "points": num_points,
                "share": covered / num_points,
                "p_binomial": p_value(covered, num_points, confidence),
                "p_finite_calibration": p_value_finite(
                    covered, num_points, num_calibration, confidence
                ),
            }
        )
    return pd.DataFrame(rows)


def regions_table(surrogate: Surrogate, data: Data, confidence: float) -> pd.DataFrame:
    """Return the rows of `coverage_table` for the whole space, its best quarter and the branch, with a
    column `region`.
    """
    import pandas as pd

    tables = [
        coverage_table(surrogate, data, confidence, region).assign(region=region)
        for region in (WHOLE, BEST, BRANCH)
    ]
    return pd.concat([table for table in tables if len(table)], ignore_index=True)


def region_lines(table: pd.DataFrame) -> list[str]:
    """Say the coverage in each region in a sentence."""
    words = []
    for (region, kind), part in table.groupby(["region", "interval"], sort=False):
        share = part["share"]
        words.append(
            f"{region}, {part['points'].iloc[0]} points, intervals of the {kind}: {share.min():.3f} to "
            f"{share.max():.3f} over the outputs, median {share.median():.3f}."
        )
    return words


def lines(table: pd.DataFrame, level: float) -> list[str]:
    """Return the table."""
    rows = [
        f"{'output':28s} {'interval':8s} {'covered':>12s} {'share':>7s} {'p':>9s} {'p, finite':>9s}"
    ]
    for row in table.itertuples():
        mark = "rejected" if row.p_binomial < level else ""
        count = f"{row.covered}/{row.points}"
        rows.append(
            f"{row.output:28s} {row.interval:8s} {count:>12s} {row.share:7.3f} {row.p_binomial:9.4f} "
            f"{row.p_finite_calibration:9.4f} {mark}".rstrip()
        )
    return rows


def verdict_lines(table: pd.DataFrame, confidence: float, level: float) -> list[str]:
    """Return how many intervals of each kind cover too seldom or too often."""
    from blis_jax.statistics.paired import holm

    rows = []
    for kind, part in table.groupby("interval"):
        rejected = int((part["p_binomial"] < level).sum())
        finite = int((part["p_finite_calibration"] < level).sum())
        together = int((holm(part["p_binomial"].to_numpy()) < level).sum())
        rows.append(
            f"{100 * confidence:g} % intervals of the {kind}: {rejected} of {len(part)} rejected at "
            f"{100 * level:g} % each, {together} if all {len(part)} are one question (Holm), {finite} with the "
            "finite calibration set taken into account."
        )
    return rows


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, whole or not at all, with six significant digits."""
    with cli.writing(path), replacing(path) as written:
        table.to_csv(written, index=False, float_format="%.6g")


if __name__ == "__main__":
    sys.exit(main())
