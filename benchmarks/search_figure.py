"""Regret curves of repeated searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from blis_jax.atomic_write import replacing

COLOURS = {
    "gp": "#0072b2",
    "ensemble": "#d55e00",
    "random": "#4d4d4d",
    "sobol": "#009e73",
    "tpe": "#cc79a7",
    "forest": "#e69f00",
}
LEAST = 1e-4  # of the regret that is drawn: a search that found the best point has none


def draw(
    curves: Mapping[str, Sequence[np.ndarray]],
    best: float,
    calls: int,
    path: Path,
    strategy: str,
    num_seeds: int,
    within: float,
) -> None:
    """Median regret by evaluation with quartiles, an engine each, to a PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from benchmarks.search_statistics import padded

    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7.4, 4.6))
        panel = figure.subplots()
        across = np.arange(1, calls + 1)
        for engine, found in curves.items():
            if not found:
                continue
            regret = np.array([padded(curve, calls) for curve in found]) / best - 1
            low, middle, high = np.percentile(regret, (25, 50, 75), axis=0).clip(min=LEAST)
            colour = COLOURS.get(engine, "#000000")
            panel.plot(across, 100 * middle, color=colour, linewidth=1.7,
                       label=f"{engine} ({len(found)} searches)")  # fmt: skip
            panel.fill_between(across, 100 * low, 100 * high, color=colour, alpha=0.15, linewidth=0)
        panel.axhline(within, color="black", linestyle="--", linewidth=0.9)
        panel.annotate(f"within {within:g} %", (calls, within), ha="right", va="bottom", fontsize=8)
        panel.set_yscale("log")
        ticks = [tick for tick in (0.1, 0.3, 1, 3, 10, 30, 100, 300) if tick <= panel.get_ylim()[1]]
        ticks = [tick for tick in ticks if tick >= panel.get_ylim()[0]]
        panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.set_yticks([], minor=True)
        panel.set_xlabel("evaluations")
        panel.set_ylabel("best score so far, % above the best known")
        panel.set_title(f"Search engines in the space of {strategy}", loc="left", fontweight="bold")
        panel.legend(frameon=False, loc="upper right")
        panel.grid(color="0.92")
        words = (
            f"Median over searches with quartiles; one evaluation is the mean over {num_seeds} fixed "
            f"seeds. Best known score {best:.4g}.\nA search that was stopped near enough stays where it was."
        )
        figure.text(0.01, 0.01, words, fontsize=7.5, color="0.3", va="bottom")
        figure.tight_layout(rect=(0, 0.07, 1, 1))
        with replacing(path) as written:
            figure.savefig(written, dpi=130, format="png")
