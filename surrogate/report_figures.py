"""The figures of a surrogate's report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from scipy.stats import binom

from blis_jax.lazy import pandas as pd
from blis_jax.metrics.metric import split_name
from blis_jax.reports.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    area_handle,
    figure,
    line_handle,
    panel_each,
    plain_log,
    save,
)
from blis_jax.reports.words import metric_name, metric_words, unit_text

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from surrogate.columns import InputColumn
    from surrogate.data import Data

MOST_ERROR_BARS = 400
OTHERS = (BLUE, GREEN, PINK, ORANGE, SKY, GREY)  # of outputs beside the most wanted one
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)


def draw_parity(
    path: Path, data: Data, predictions: xr.Dataset, chosen: Sequence[str], r2: dict[str, float]
) -> None:
    """Draw predicted against simulated means, with intervals, one panel per output."""
    columns = min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    with figure(2.5 * rows, rows, columns) as (made, panels):
        for panel, name in panel_each(panels, chosen):
            _draw_parity(panel, data, predictions, name, r2[name])
        num_seeds = data.test.runs.shape[1]
        caption = (
            f"{len(data.test.inputs):,} test points that were not used in fitting or calibration, means over "
            f"{num_seeds} seeds. Bars: 90 % conformal intervals, of the first {MOST_ERROR_BARS} points. Grey "
            "line: equality. Axes are logarithmic where an output spans a factor of five."
        )
        save(made, path, "Means that the surrogate predicts against simulated ones", caption)


def _draw_parity(panel: Axes, data: Data, predictions: xr.Dataset, name: str, r2: float) -> None:
    place = data.outputs.index(name)
    y = data.test.means[:, place]
    mean, low, high = (predictions[key].values[:, place] for key in ("mean", "low", "high"))
    is_log = y.min() > 0 and y.max() > 5 * y.min()
    some = slice(0, MOST_ERROR_BARS)
    ends = np.abs(np.stack([mean - low, high - mean]))[:, some]
    panel.errorbar(
        y[some],
        mean[some],
        yerr=ends,
        fmt="none",
        ecolor="0.75",
        elinewidth=0.6,
        capsize=0,
        zorder=1,
    )
    panel.plot(y, mean, ".", color=BLUE, markersize=2.5, zorder=2)
    span = np.array([min(y.min(), mean.min()), max(y.max(), mean.max())])
    panel.plot(span, span, color="0.45", linewidth=0.8, zorder=3)
    if is_log:
        plain_log(panel, "x")
        plain_log(panel, "y")
    else:
        panel.xaxis.set_major_locator(MaxNLocator(4))
    unit = unit_text(data.units[place], " ({})")
    panel.set_title(f"{_output_name(name)}\nR² {r2:.3f}")
    panel.set_xlabel(f"simulated{unit}")
    panel.set_ylabel(f"predicted{unit}")


def _output_name(name: str) -> str:
    """Return an output's name as a panel's title: `TTFT P99, critical`."""
    metric, slo_class = split_name(name)
    words = metric_name(metric).removesuffix(" by run")
    return f"{words}, {slo_class}" if slo_class else words


def draw_residuals(path: Path, data: Data, predictions: xr.Dataset, name: str) -> None:
    """Draw residuals of one output over every input, with their quantiles in slices."""
    place = data.outputs.index(name)
    y, mean = data.test.means[:, place], predictions["mean"].values[:, place]
    is_relative = bool(y.min() > 0)
    residual = 100 * (mean / y - 1) if is_relative else mean - y
    names = [column.name for column in data.columns]
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    limit = float(np.quantile(np.abs(residual), 0.995))
    unit = unit_text("%" if is_relative else data.units[place], " ({})")
    quantiles = {
        level: {"color": RED, "linewidth": 1.2, "linestyle": line}
        for level, line in ((0.05, "--"), (0.5, "-"), (0.95, "--"))
    }
    legend = [
        line_handle("test point", color=BLUE, marker=".", linestyle="none"),
        line_handle("median in a slice", **quantiles[0.5]),
        line_handle("5 % and 95 % quantile", **quantiles[0.95]),
    ]
    with figure(2.1 * rows, rows, columns, sharey=True) as (made, panels):
        for at, (panel, _) in enumerate(panel_each(panels, names)):
            x = data.test.inputs[:, at]
            panel.plot(x, residual, ".", color=BLUE, markersize=2.0, alpha=0.6)
            _draw_quantiles(panel, x, residual, quantiles)
            panel.axhline(0, color=GREY, linewidth=0.7)
            panel.set_ylim(-limit, limit)
            _name_axis(panel, data.columns[at])
            if at % columns == 0:
                panel.set_ylabel(f"residual{unit}")
        num_out = int((np.abs(residual) > limit).sum())
        caption = (
            "Predicted minus simulated mean at the test points"
            + (", in % of the simulated" if is_relative else "")
            + f". Quantiles are of ten slices of the input. Points beyond the axes: {num_out}."
        )
        save(made, path, f"Residuals of {metric_words(name)} over every input", caption, legend)


def _draw_quantiles(
    panel: Axes, x: np.ndarray, residual: np.ndarray, quantiles: Mapping[float, Mapping[str, Any]]
) -> None:
    """Draw quantiles of the residuals in ten slices of equally many points."""
    edges = np.unique(np.quantile(x, np.linspace(0, 1, 11)))
    slices = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)
    for level, line in quantiles.items():
        steps = [
            np.quantile(residual[slices == at], level) if (slices == at).any() else np.nan
            for at in range(len(edges) - 1)
        ]
        panel.stairs(steps, edges, baseline=None, **line)


def _name_axis(panel: Axes, column: InputColumn) -> None:
    if column.kind == "categorical":
        panel.set_xticks(
            range(len(column.categories)), [str(category) for category in column.categories]
        )
    elif column.is_log:
        panel.set_xscale("log")
    else:
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    panel.set_xlabel(column.name + unit_text(column.unit, " ({})"))


def draw_calibration(path: Path, table: pd.DataFrame, num_points: int) -> None:
    """Draw the share covered against confidence; `table` has confidence, interval, output and share."""
    grid = np.linspace(0.45, 0.995, 80)
    titles = {"mean": "means over the seeds", "run": "single runs"}
    legend = [
        area_handle("99 % of binomial counts", color="0.85"),
        line_handle("each output", color=BLUE, linewidth=0.8),
        line_handle("median output", color=RED, marker="o"),
    ]
    with figure(3.0, 1, 2, sharey=True) as (made, panels):
        for panel, (kind, title) in zip(panels[0], titles.items(), strict=True):
            low, high = (binom.ppf(q, num_points, grid) / num_points for q in (0.005, 0.995))
            panel.fill_between(grid, low, high, color="0.85")
            panel.plot(grid, grid, color=GREY, linewidth=0.8)
            part = table[table["interval"] == kind]
            for _, of_output in part.groupby("output"):
                panel.plot(
                    of_output["confidence"],
                    of_output["share"],
                    color=BLUE,
                    linewidth=0.5,
                    alpha=0.45,
                )
            middle = part.groupby("confidence")["share"].median()
            panel.plot(middle.index, middle.values, "o-", color=RED, markersize=4)
            panel.set_title(title)
            panel.set_xlabel("confidence asked for")
        panels[0][0].set_ylabel("share of test points covered")
        caption = (
            f"Coverage of conformal intervals on {num_points:,} test points. Grey band: where 99 % of counts "
            "lie if coverage is exact."
        )
        save(made, path, "Do the intervals hold as often as they say?", caption, legend)


def draw_curve(path: Path, curve: pd.DataFrame, chosen: Sequence[str], most_wanted: str) -> None:
    """Draw 1 − R² against the number of simulated runs, a line for each chosen output."""
    wanted = {"color": RED, "linewidth": 2.2, "marker": "o", "markersize": 4}
    others = [name for name in chosen if name != most_wanted]
    styles = {
        name: {"color": colour, "linewidth": 1.0, "marker": "o", "markersize": 4}
        for name, colour in zip(others, itertools.cycle(OTHERS), strict=False)
    } | {name: wanted for name in chosen if name == most_wanted}
    bars = {
        0.98: {"color": RED, "linestyle": ":", "linewidth": 1.2},
        0.95: {"color": GREY, "linestyle": ":", "linewidth": 1.2},
    }
    legend = [area_handle("10 to 90 % of all outputs", color="0.9")]
    legend += [line_handle(_output_name(name), **styles[name]) for name in chosen]
    legend += [line_handle(f"R² = {bar:g}", **style) for bar, style in bars.items()]
    with figure(3.6) as (made, panels):
        panel = panels[0][0]
        by_size = curve.groupby("runs")["r2"]
        lows, highs = by_size.quantile(0.1), by_size.quantile(0.9)
        panel.fill_between(lows.index, 1 - highs, 1 - lows, color="0.9")
        for name in chosen:
            part = curve[curve["output"] == name]
            panel.plot(part["runs"], 1 - part["r2"], **styles[name])
        for bar, style in bars.items():
            panel.axhline(1 - bar, **style)
        runs = sorted(set(curve["runs"]))
        panel.set_xscale("log")
        plain_log(panel, "y")
        panel.set_xticks(runs, [f"{count:,}" for count in runs])
        panel.set_xticks([], minor=True)
        panel.set_xlabel("simulated runs in the training set")
        panel.set_ylabel("1 − R² on the test points (smaller is better)")
        caption = (
            "Each size is an ensemble of its own, fitted to the first points of the training sequence with the "
            "same number of gradient steps."
        )
        save(made, path, "How many simulations does a surrogate take?", caption, legend)
