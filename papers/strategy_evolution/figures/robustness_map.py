"""Figure 10: which strategy is best where, over 1,024 regimes; and its data, counted in a map.

python -m papers.strategy_evolution.figures.robustness_map CELLS.csv        makes the data from a robustness map
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, option, word
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_csv
from blis_jax.lazy import pandas as pd
from blis_jax.reports import style
from papers.record.figures import POLICY_COLOURS, FigureWords, expected, shipped_data, shows

PACKAGE = "papers.strategy_evolution"
NAME = f"{PACKAGE}.figures.robustness_map"
AXES = {
    "rate": "arrival rate (requests/s)",
    "arrival_cv": "CV of the gaps between arrivals",
    "kv_blocks": "KV blocks per instance",
    "kv_cpu_blocks": "KV blocks of the CPU tier",
    "instances": "instances",
    "shape": "workload",
    "step_constant": "fixed cost of a step (µs)",
}
COLOURS = {
    "baseline": POLICY_COLOURS["baseline"],
    "tuned": POLICY_COLOURS["8-opt"],
    "found": POLICY_COLOURS["iteration 13"],
    "undecided": "#e4e4e4",
    "none": "#3b2a4d",
}
WORDS = {
    "baseline": "baseline",
    "tuned": "8-opt",
    "found": "iteration 13, found here",
    "undecided": "none clearly best",
    "none": "none runs within the constraints",
}


@shows(
    PACKAGE, "which strategy is best where, over 1,024 regimes", (6.4, 4, 2),
    (
        # a design of 1,024 cells; and from 10,000 blocks on every run ends, as in figure 4 and the reference
        *expected("axis", [(axis, 1024) for axis in AXES], 0.0, x="all", recommended="all"),
        *expected("x", (("10000", 0), ("132139", 0)), 0.0, axis="kv_blocks", recommended="none"),
    ),
)  # fmt: skip
def robustness_map(panels: Any, table: pd.DataFrame) -> FigureWords:
    """Draw the share of the cells in which each strategy is recommended, by the value of each axis."""
    flat = panels.reshape(-1)
    for panel, (axis, words) in zip(flat, AXES.items(), strict=False):
        _bars(panel, table[(table["axis"] == axis) & (table["x"] != "all")])
        panel.set_title(words)
    for panel in panels[:, 0]:
        panel.set_ylabel("% of cells")
    flat[-1].set_axis_off()
    return FigureWords(
        "Iteration 13 is recommended most often; short of KV blocks, often none is",
        "1,024 cells spread evenly over seven axes (Sobol); in each, every strategy on the same requests of "
        "0.5 s of arrivals, 8 seeds. A strategy is recommended where it has the lowest critical TTFT P99 in at "
        "least 95 % of the bootstrap resamples of the seeds, sheddable TTFT P99 at most twice the baseline's and "
        "throughput at least 95 % of it. Cells are not corrected for their number.",
        [style.area_handle(WORDS[name], color=colour) for name, colour in COLOURS.items()],
    )


def _bars(panel: Any, table: pd.DataFrame) -> None:
    values = list(dict.fromkeys(table["x"]))
    values.sort(key=lambda text: (not _is_number(text), float(text) if _is_number(text) else 0.0))
    bottom = [0.0] * len(values)
    for name, colour in COLOURS.items():
        rows = table[table["recommended"] == name].set_index("x")["percent"]
        heights = [float(rows.get(value, 0.0)) for value in values]
        panel.bar(range(len(values)), heights, bottom=bottom, color=colour, width=0.8)
        bottom = [height_below + other for height_below, other in zip(bottom, heights, strict=True)]
    labels = [f"{float(v):,.0f}" if _is_number(v) and float(v) >= 100 else str(v) for v in values]
    labels = [label.replace("nonorthogonal", "non-\northogonal") for label in labels]
    is_long = any(len(label) > 9 for label in labels)
    panel.set_xticks(range(len(values)), labels, fontsize=8 if is_long else 8.5)
    panel.set_ylim(0, 100)
    panel.grid(visible=False)


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- the data, from the table of cells that sweeps.robustness writes -------------------------------


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
    CommandOptions, title="files", command=NAME,
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
    target = Path(options.data or shipped_data(PACKAGE)) / "robustness_map.csv"
    cli.check_writable(target)
    write_csv(target, counts(cells))
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
