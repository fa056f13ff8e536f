"""The figure of a sweep: TTFT distributions per SLO class, one colour per strategy."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.atomic_write import replacing
from blis_jax.compare import difference, estimate, values_of
from blis_jax.summaries import ALL
from blis_jax.sweep_data import CURVE

if TYPE_CHECKING:
    import xarray as xr

# Okabe and Ito's colours, which colour-blind readers can tell apart; the first is the baseline's.
COLOURS = ("#4d4d4d", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
BAND = (5, 95)  # percent of the seeds
PANEL_INCHES = (3.2, 2.9)
LINE_INCHES = 0.17  # height of a line of text
LETTERS_PER_INCH = 17.5  # in the caption


def draw(dataset: xr.Dataset, path: Path) -> None:
    """Draws the first place of the grid to a PNG, whole or not at all."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    at_place = _first_place(dataset)
    classes = [str(name) for name in dataset["slo_class"].values if name != ALL]
    strategies = [str(name) for name in dataset["strategy"].values][: len(COLOURS)]
    width = PANEL_INCHES[0] * len(classes) + 0.6
    caption = _caption(dataset, int(LETTERS_PER_INCH * width))
    above = LINE_INCHES * (len(strategies) + 3)
    below = LINE_INCHES * (len(caption) + 0.6)
    height = PANEL_INCHES[1] + above + below
    style: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style):
        figure = Figure(figsize=(width, height))
        axes = figure.subplots(1, len(classes), sharex=True, sharey=True, squeeze=False)[0]
        for panel, slo_class in zip(axes, classes, strict=True):
            _draw_class(panel, at_place, slo_class, strategies)
        axes[0].set_ylabel("requests with first token (%)")
        axes[0].set_xlim(left=0)
        axes[0].set_ylim(0, 101)
        heading = (
            f"Time to first token by SLO class, workload {Path(dataset.attrs['workload']).stem}"
        )
        figure.text(0.01, 1 - 0.06 / height, heading, fontsize=11, va="top")
        words = "\n".join(caption)
        figure.text(0.01, 0.06 / height, words, fontsize=8, color="0.35", va="bottom")
        figure.tight_layout(rect=(0, below / height, 1, 1 - 1.5 * LINE_INCHES / height))
        with replacing(path) as written:
            figure.savefig(written, dpi=130, format="png")


def _first_place(dataset: xr.Dataset) -> xr.Dataset:
    axes = [dim for dim in dataset["outcome"].dims if dim not in ("strategy", "seed")]
    return dataset.isel(dict.fromkeys(axes, 0))


def _draw_class(panel: Any, dataset: xr.Dataset, slo_class: str, strategies: Sequence[str]) -> None:
    """One panel: per strategy the mean curve, the band of the seeds, the mean P99."""
    of_class = dataset.sel(slo_class=slo_class)
    share = 100 * of_class["level"].values
    tails = values_of(of_class, "ttft_p99_ms").transpose("strategy", "seed").values
    for row, (colour, strategy) in enumerate(zip(COLOURS, strategies, strict=False)):
        words = f"{strategy}: no run"
        curves = of_class[CURVE].isel(strategy=row).transpose("seed", "level").values
        curves = curves[np.isfinite(curves).all(axis=1)]
        if len(curves):
            low, high = np.percentile(curves, BAND, axis=0)
            panel.fill_betweenx(share, low, high, color=colour, alpha=0.2, linewidth=0)
            panel.plot(curves.mean(axis=0), share, color=colour, linewidth=1.8)
            tail = estimate(tails[row])
            panel.plot([tail.mean], [99], "o", color=colour, markersize=5, zorder=4)
            words = f"{strategy}: 99 % within {tail.mean:.0f} ms"
            if row > 0:
                change = difference(tails[0], tails[row]).percent.mean
                words += f" ({change:+.0f} %)".replace("-", "−")
        offset = 1.04 + (len(strategies) - 1 - row) * LINE_INCHES / PANEL_INCHES[1] * 1.12
        panel.text(0, offset, words, color=colour, transform=panel.transAxes)
    counts = dataset["num_requests"]
    percent = 100 * float(counts.sel(slo_class=slo_class).sum() / counts.sel(slo_class=ALL).sum())
    heading = f"{slo_class} ({percent:.0f} % of requests)"
    pad = 8 + 72 * 1.12 * LINE_INCHES * len(strategies)
    panel.set_title(heading, loc="left", fontweight="bold", fontsize=9.5, pad=pad)
    panel.set_xlabel("time to first token (ms)")
    panel.grid(color="0.9")
    panel.set_axisbelow(True)


def _caption(dataset: xr.Dataset, width: int) -> list[str]:
    num_seeds = dataset.sizes["seed"]
    grid = json.loads(dataset.attrs["grid"])
    place = ", ".join(f"{name} = {values[0]}" for name, values in grid.items())
    seeds = f"{num_seeds} random seeds" if num_seeds > 1 else "one random seed"
    text = (
        f"Each strategy served the same requests, drawn with {seeds}. Lines: mean over seeds of the "
        f"time within which a share of the class's requests had their first token. Bands: the middle "
        f"{BAND[1] - BAND[0]} % of the seeds. Dots: 99th percentile, mean over seeds."
    )
    return textwrap.wrap(text + (f" At {place}." if place else ""), width)
