"""The figure of a sweep: TTFT distributions per SLO class, one colour per strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.commands.sweep.data import CURVE
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.figures import WIDTH, figure, line_handle, save
from blis_jax.reports.style import STRATEGY_COLOURS, strategy_colours
from blis_jax.statistics.compared import values_of
from blis_jax.statistics.intervals import estimate
from blis_jax.statistics.paired import difference

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

BAND = (5, 95)  # percent of the seeds
PANEL_INCHES = (2.2, 2.6)
LINE_INCHES = 0.16  # height of a line of text


def draw(dataset: xr.Dataset, path: Path) -> None:
    """Draws the first place of the grid to a PNG, whole or not at all."""
    at_place = _first_place(dataset)
    classes = [str(name) for name in dataset["slo_class"].values if name != ALL]
    strategies = [str(name) for name in dataset["strategy"].values][: len(STRATEGY_COLOURS)]
    colours = strategy_colours(strategies)
    width = max(WIDTH, PANEL_INCHES[0] * len(classes) + 0.5)
    height = PANEL_INCHES[1] + LINE_INCHES * len(strategies)
    with figure(height, 1, len(classes), width, sharex=True, sharey=True) as (made, panels):
        for panel, slo_class in zip(panels[0], classes, strict=True):
            _draw_class(panel, at_place, slo_class, colours)
        panels[0][0].set_ylabel("requests with first token (%)")
        panels[0][0].set_xlim(left=0)
        panels[0][0].set_ylim(0, 101)
        names = " and ".join((", ".join(strategies[:-1]), strategies[-1])[len(strategies) < 2 :])
        title = (
            f"Time to first token by SLO class under {names}, "
            f"workload {Path(dataset.attrs['workload']).stem}"
        )
        handles = [line_handle(name, color=colour, marker="o") for name, colour in colours.items()]
        save(made, path, title, _caption(dataset), handles)


def _first_place(dataset: xr.Dataset) -> xr.Dataset:
    axes = [dim for dim in dataset["outcome"].dims if dim not in ("strategy", "seed")]
    return dataset.isel(dict.fromkeys(axes, 0))


def _draw_class(
    panel: Axes, dataset: xr.Dataset, slo_class: str, colours: Mapping[str, str]
) -> None:
    """One panel: per strategy the mean curve, the band of the seeds, the mean P99."""
    of_class = dataset.sel(slo_class=slo_class)
    share = 100 * of_class["level"].values
    tails = values_of(of_class, "ttft_p99_ms").transpose("strategy", "seed").values
    for row, colour in enumerate(colours.values()):
        words = "no run"
        curves = of_class[CURVE].isel(strategy=row).transpose("seed", "level").values
        curves = curves[np.isfinite(curves).all(axis=1)]
        if len(curves):
            low, high = np.percentile(curves, BAND, axis=0)
            panel.fill_betweenx(share, low, high, color=colour, alpha=0.2, linewidth=0)
            panel.plot(curves.mean(axis=0), share, color=colour, linewidth=1.8)
            tail = estimate(tails[row])
            panel.plot([tail.mean], [99], "o", color=colour, markersize=5, zorder=4)
            words = f"P99 by run {tail.mean:.0f} ms"
            if row > 0:
                change = difference(tails[0], tails[row]).percent.mean
                words += f" ({change:+.0f} %)".replace("-", "−")
        offset = 1.04 + (len(colours) - 1 - row) * LINE_INCHES / (0.75 * PANEL_INCHES[1])
        panel.text(0, offset, words, color=colour, transform=panel.transAxes)
    counts = dataset["num_requests"]
    percent = 100 * float(counts.sel(slo_class=slo_class).sum() / counts.sel(slo_class=ALL).sum())
    heading = f"{slo_class} ({percent:.0f} % of requests)"
    panel.set_title(heading, pad=7 + 72 * 1.05 * LINE_INCHES * len(colours))
    panel.set_xlabel("time to first token (ms)")


def _caption(dataset: xr.Dataset) -> str:
    num_seeds = dataset.sizes["seed"]
    grid = json.loads(dataset.attrs["grid"])
    place = ", ".join(f"{name} = {values[0]}" for name, values in grid.items())
    seeds = f"{num_seeds} random seeds" if num_seeds > 1 else "one random seed"
    requests, word = f"drawn with {seeds}", "seeds"
    if dataset.attrs["random_stream"] == "recorded":
        requests, word = f"those of a trace in {num_seeds} run{'s' * (num_seeds > 1)}", "runs"
    text = (
        f"Each strategy served the same requests, {requests}. Lines: mean over {word} of the "
        f"time within which a share of the class's requests had their first token. Bands: the middle "
        f"{BAND[1] - BAND[0]} % of the {word}. Dots: 99th percentile, mean over {word}."
    )
    return text + (f" At {place}." if place else "")
