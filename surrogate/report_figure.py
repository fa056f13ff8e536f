"""The figures of a surrogate's report."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.atomic_write import replacing

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from surrogate.data import Data

DPI = 130
BLUE, RED, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#4d4d4d"
MOST_ERROR_BARS = 400
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    made = Figure(figsize=size, layout="constrained")
    return made, made.subplots(rows, columns, squeeze=False)


def _save(made: Any, path: Path, title: str, caption: str) -> None:
    width = made.get_size_inches()[0]
    words = "\n".join(textwrap.wrap(" ".join(caption.split()), int(15.5 * width)))
    made.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    made.supxlabel(words, x=0.01, ha="left", fontsize=8, color="0.3")
    with replacing(path) as written:
        made.savefig(written, dpi=DPI, format="png")


def _style(panel: Any, title: str) -> None:
    panel.set_title(title, fontsize=9, loc="left")
    panel.grid(color="0.9")
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def draw_parity(
    path: Path, data: Data, found: xr.Dataset, chosen: Sequence[str], r2: dict[str, float]
) -> None:
    """Predicted against simulated means, with intervals, one panel an output."""
    columns = min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    made, panels = _figure(rows, columns, (3.3 * columns, 3.1 * rows + 0.9))
    flat = panels.ravel()
    for panel in flat[len(chosen) :]:
        panel.set_visible(False)
    for panel, name in zip(flat, chosen, strict=False):
        place = data.outputs.index(name)
        y = data.test.means[:, place]
        mean, low, high = (found[key].values[:, place] for key in ("mean", "low", "high"))
        is_log = y.min() > 0 and y.max() > 5 * y.min()
        some = slice(0, MOST_ERROR_BARS)
        ends = np.abs(np.stack([mean - low, high - mean]))[:, some]
        panel.errorbar(
            y[some], mean[some], yerr=ends, fmt="none", ecolor="0.75", elinewidth=0.6, zorder=1
        )
        panel.plot(y, mean, ".", color=BLUE, markersize=2.5, zorder=2)
        span = np.array([min(y.min(), mean.min()), max(y.max(), mean.max())])
        panel.plot(span, span, color=GREY, linewidth=0.8, zorder=3)
        if is_log:
            panel.set_xscale("log")
            panel.set_yscale("log")
        unit = data.units[place]
        _style(panel, f"{name}   R² {r2[name]:.3f}")
        panel.set_xlabel(f"simulated ({unit})", fontsize=8)
        panel.set_ylabel(f"predicted ({unit})", fontsize=8)
    num_seeds = data.test.runs.shape[1]
    _save(
        made, path, "Predicted and simulated means",
        f"{len(data.test.inputs)} test points that were not used in fitting or calibration, means over "
        f"{num_seeds} seeds. Bars: 90 % conformal intervals, of the first {MOST_ERROR_BARS} points. Grey "
        "line: equality. Axes are logarithmic where an output spans a factor of five.",
    )  # fmt: skip


def draw_residuals(path: Path, data: Data, found: xr.Dataset, name: str) -> None:
    """Residuals of one output over every input, with their quantiles in slices."""
    place = data.outputs.index(name)
    y, mean = data.test.means[:, place], found["mean"].values[:, place]
    is_relative = bool(y.min() > 0)
    residual = 100 * (mean / y - 1) if is_relative else mean - y
    names = [column.name for column in data.columns]
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    made, panels = _figure(rows, columns, (3.3 * columns, 2.4 * rows + 0.9))
    flat = panels.ravel()
    for panel in flat[len(names) :]:
        panel.set_visible(False)
    limit = float(np.quantile(np.abs(residual), 0.995))
    for panel, column, x in zip(flat, data.columns, data.test.inputs.T, strict=False):
        panel.plot(x, residual, ".", color=BLUE, markersize=2.0, alpha=0.6)
        edges = np.unique(np.quantile(x, np.linspace(0, 1, 11)))
        slices = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)
        for level, line in ((0.05, "--"), (0.5, "-"), (0.95, "--")):
            steps = [
                np.quantile(residual[slices == at], level) if (slices == at).any() else np.nan
                for at in range(len(edges) - 1)
            ]
            panel.stairs(steps, edges, color=RED, linewidth=1.1, linestyle=line, baseline=None)
        panel.axhline(0, color=GREY, linewidth=0.7)
        panel.set_ylim(-limit, limit)
        if column.is_log:
            panel.set_xscale("log")
        _style(panel, column.name)
        panel.set_xlabel(column.unit or "value of the parameter", fontsize=8)
        unit = "%" if is_relative else data.units[place]
        panel.set_ylabel(f"residual ({unit})", fontsize=8)
    num_out = int((np.abs(residual) > limit).sum())
    _save(
        made, path, f"Residuals of {name} over every input",
        "Predicted minus simulated mean at the test points" + (", in % of the simulated" if is_relative else "")
        + ". Red: median (line), 5 % and 95 % quantiles (dashed) of the residuals in ten slices. "
        f"Points beyond the axes: {num_out}.",
    )  # fmt: skip


def draw_calibration(path: Path, table: pd.DataFrame, num_points: int) -> None:
    """Share covered against confidence; `table` has confidence, interval, output and share."""
    from scipy.stats import binom

    made, panels = _figure(1, 2, (7.4, 4.0))
    grid = np.linspace(0.45, 0.995, 80)
    titles = {"mean": "means over the seeds", "run": "single runs"}
    for panel, (kind, title) in zip(panels[0], titles.items(), strict=True):
        low, high = (binom.ppf(q, num_points, grid) / num_points for q in (0.005, 0.995))
        panel.fill_between(grid, low, high, color="0.88", label="99 % of binomial counts")
        panel.plot(grid, grid, color=GREY, linewidth=0.8)
        part = table[table["interval"] == kind]
        for _, one in part.groupby("output"):
            panel.plot(one["confidence"], one["share"], color=BLUE, linewidth=0.5, alpha=0.45)
        middle = part.groupby("confidence")["share"].median()
        panel.plot(
            middle.index, middle.values, "o-", color=RED, markersize=4, label="median output"
        )
        panel.plot([], [], color=BLUE, linewidth=0.8, label="each output")
        _style(panel, title)
        panel.set_xlabel("confidence asked for", fontsize=8)
        panel.set_ylabel("share of test points covered", fontsize=8)
        panel.legend(fontsize=7.5, frameon=False, loc="upper left")
    _save(
        made, path, "Do the intervals hold as often as they say?",
        f"Coverage of conformal intervals on {num_points} test points, one thin line an output. Grey band: "
        "where 99 % of counts lie if coverage is exact.",
    )  # fmt: skip


def draw_curve(path: Path, curve: pd.DataFrame, chosen: Sequence[str], most_wanted: str) -> None:
    """1 - R² against the number of simulated runs."""
    made, panels = _figure(1, 1, (6.4, 4.4))
    panel = panels[0][0]
    by_size = curve.groupby("runs")["r2"]
    lows, highs = by_size.quantile(0.1), by_size.quantile(0.9)
    panel.fill_between(
        lows.index, 1 - highs, 1 - lows, color="0.9", label="10 to 90 % of all outputs"
    )
    for name in chosen:
        part = curve[curve["output"] == name]
        is_wanted = name == most_wanted
        panel.plot(
            part["runs"], 1 - part["r2"], "o-", markersize=4, linewidth=2.2 if is_wanted else 1.0,
            color=RED if is_wanted else None, label=name,
        )  # fmt: skip
    panel.axhline(0.02, color=RED, linestyle=":", linewidth=1)
    panel.axhline(0.05, color=GREY, linestyle=":", linewidth=1)
    runs = sorted(set(curve["runs"]))
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(runs, [f"{count:,}" for count in runs], fontsize=8)
    panel.minorticks_off()
    _style(panel, "")
    panel.set_xlabel("simulated runs in the training set", fontsize=9)
    panel.set_ylabel("1 − R² on the test points (smaller is better)", fontsize=9)
    panel.legend(fontsize=7.5, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0))
    _save(
        made, path, "How many simulations does it take?",
        "Each size is an ensemble of its own, fitted to the first points of the training sequence with the "
        "same number of gradient steps. Dotted: the bars R² = 0.98 (red) and 0.95 (grey).",
    )  # fmt: skip
