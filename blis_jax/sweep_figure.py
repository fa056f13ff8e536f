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
from blis_jax.sweep_data import CURVE
from blis_jax.summaries import ALL

if TYPE_CHECKING:
    import xarray as xr
    from jaxtyping import Float

# Okabe and Ito's colours, which colour-blind readers can tell apart; the first is the baseline's.
COLOURS = ("#4d4d4d", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
BAND = (5, 95)  # percent of the seeds


def draw(dataset: xr.Dataset, path: Path) -> None:
    """Draws the first place of the grid to a PNG, whole or not at all."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    at_place = _first_place(dataset)
    classes = [str(name) for name in dataset["slo_class"].values if name != ALL]
    strategies = [str(name) for name in dataset["strategy"].values][: len(COLOURS)]
    with pyplot.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = pyplot.subplots(
            1, len(classes), figsize=(3.2 * len(classes) + 0.8, 4.1), sharey=True, squeeze=False
        )
        for panel, slo_class in zip(axes[0], classes, strict=True):
            _draw_class(panel, at_place.sel(slo_class=slo_class), slo_class, strategies)
        axes[0][0].set_ylabel("requests with first token by then (%)")
        _add_words(figure, axes[0], dataset, strategies)
        with replacing(path) as written:
            figure.savefig(written, dpi=150, format="png")
        pyplot.close(figure)


def _first_place(dataset: xr.Dataset) -> xr.Dataset:
    axes = [dim for dim in dataset["outcome"].dims if dim not in ("strategy", "seed")]
    return dataset.isel(dict.fromkeys(axes, 0))


def _draw_class(
    panel: Any, of_class: xr.Dataset, slo_class: str, strategies: Sequence[str]
) -> None:
    """One panel: per strategy the mean curve, the band of the seeds, the mean P99."""
    share = 100 * of_class["level"].values
    tails = values_of(of_class, "ttft_p99_ms")
    first = tails.sel(strategy=strategies[0]).values
    lines = []
    for colour, strategy in zip(COLOURS, strategies, strict=False):
        curves = of_class[CURVE].sel(strategy=strategy).transpose("seed", "level").values
        curves = curves[np.isfinite(curves).all(axis=1)]
        if not len(curves):
            continue
        low, high = np.percentile(curves, BAND, axis=0)
        panel.fill_betweenx(share, low, high, color=colour, alpha=0.2, linewidth=0)
        panel.plot(curves.mean(axis=0), share, color=colour, linewidth=1.8)
        tail = estimate(tails.sel(strategy=strategy).values)
        panel.plot([tail.mean], [99], "o", color=colour, markersize=5, zorder=4)
        words = f"{tail.mean:.0f} ms"
        if strategy != strategies[0]:
            change = difference(first, tails.sel(strategy=strategy).values).percent
            words += f" ({change.mean:+.0f} %)".replace("-", "−")
        lines.append((words, colour))
    panel.set_title(slo_class, loc="left", fontweight="bold")
    panel.text(0.98, 0.06 + 0.065 * len(lines), "P99:", transform=panel.transAxes, ha="right")
    for row, (words, colour) in enumerate(reversed(lines)):
        panel.text(
            0.98, 0.06 + 0.065 * row, words, color=colour, transform=panel.transAxes, ha="right"
        )
    panel.set_xlabel("time to first token, TTFT (ms)")
    panel.set_xlim(left=0)
    panel.set_ylim(0, 101)
    panel.grid(color="0.9")
    panel.set_axisbelow(True)


def _add_words(
    figure: Any, panels: Sequence[Any], dataset: xr.Dataset, strategies: Sequence[str]
) -> None:
    from matplotlib.lines import Line2D

    num_seeds = dataset.sizes["seed"]
    handles = [
        Line2D([], [], color=colour, linewidth=1.8, label=strategy)
        for colour, strategy in zip(COLOURS, strategies, strict=False)
    ]
    figure.legend(handles=handles, loc="upper right", ncols=len(handles), frameon=False)
    figure.suptitle(
        f"How soon requests get their first token, {dataset.attrs['workload']} workload",
        x=0.01,
        ha="left",
        fontsize=11,
    )
    policies = json.loads(dataset.attrs["grid"])
    place = ", ".join(f"{name} = {values[0]}" for name, values in policies.items())
    caption = (
        f"Lines: mean over {num_seeds} seeds (workloads), the same for all strategies. Bands: the middle "
        f"{BAND[1] - BAND[0]} % of the seeds. Dots: 99th percentile, mean over seeds."
        + (f" At {place}." if place else "")
    )
    width = int(30 * figure.get_figwidth() / 2)
    figure.text(0.01, 0.012, textwrap.fill(caption, width), fontsize=8, color="0.35", va="bottom")
    figure.tight_layout(rect=(0, 0.09, 1, 0.97))
