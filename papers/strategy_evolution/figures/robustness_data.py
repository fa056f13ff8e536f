"""`python -m papers.strategy_evolution.figures.robustness_data CELLS.csv`: figure 10's data from a robustness map."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, option, word
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing
from blis_jax.lazy import pandas as pd
from papers.record.figures import shipped_data
from papers.strategy_evolution.figures import PACKAGE
from papers.strategy_evolution.figures.robustness_map import AXES, COLOURS, NAME

_DESCRIPTION = """\
Count in the table of cells that sweeps.robustness writes how often each strategy is recommended, by
the value of each axis, and write figure 10's data.
"""
_EXAMPLES = """\
examples:
  the map of the figure (24,016 runs), then its data:
    blis-jax robustness baseline=iter00_baseline tuned=iter08_token_budget@published \\
        found=iter13_class_lead@found --output out/map.zarr
    %(prog)s out/map.csv
"""


class RobustnessDataOptions(
    CommandOptions, title="files", command="papers.strategy_evolution.figures.robustness_data",
    description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    cells: str | None = word("CELLS.csv", "the table of a map")
    data: str | None = option(str, None, "FOLDER", "where to write (default: here)")


@RobustnessDataOptions.as_main
def main(options: RobustnessDataOptions) -> int:
    """Run the command; return its exit code."""
    path = Path(options.cells or "")
    if not path.is_file():
        raise ConfigError(f"{path} is no file; give the .csv that sweeps.robustness writes")
    cells = pd.read_csv(path, keep_default_na=False)
    lacking = [name for name in (*AXES, "recommended") if name not in cells]
    if lacking:
        raise ConfigError(f"{path} has no column {lacking[0]}; give the .csv of a robustness map")
    unknown = sorted(set(cells["recommended"]) - set(COLOURS))
    if unknown:
        raise ConfigError(
            f"{path} recommends {unknown[0]!r}; the figure knows {', '.join(COLOURS)}: label the "
            "arms of the map so"
        )
    target = Path(options.data or shipped_data(PACKAGE)) / f"{NAME}.csv"
    cli.check_writable(target)
    with cli.writing(target), replacing(target) as written:
        counts(cells).to_csv(written, index=False)
    print(f"Written: {target}")
    return 0


def counts(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the share of the cells by axis, value and recommendation; zero where there is none."""
    rows = []
    for axis in AXES:
        for value, group in cells.groupby(axis):
            name = value if axis == "shape" else str(value)
            for label in COLOURS:
                count = int((group["recommended"] == label).sum())
                rows.append((axis, name, label, count, round(100 * count / len(group), 3)))
        rows.append((axis, "all", "all", len(cells), 100.0))
    return pd.DataFrame(rows, columns=["axis", "x", "recommended", "mean", "percent"])


if __name__ == "__main__":
    sys.exit(main())
