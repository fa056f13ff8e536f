"""Predicted against measured figures of held-out runs, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from blis_jax.reports.style import GUIDE_COLOUR, STRATEGY_COLOURS, figure, line_handle, save
from papers.real_servers.designs import Error
from papers.real_servers.vllm import VllmRun

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "figures" / "real_servers.png"
FIGURES = {
    "itl_mean": "ITL mean",
    "e2e_mean": "E2E mean",
    "ttft_mean": "TTFT mean",
    "ttft_p99": "TTFT P99",
}
TITLE = (
    "Fitted to other models, predictions lie near the line; with nothing fitted, TTFT is too short"
)
CAPTION = (
    "A point is a run of one vLLM server. Colours: served-physics fitted to the runs of all other models. "
    "Crosses: trained-physics as BLIS publishes it. On the grey line prediction and measurement are equal."
)
MARK: dict[str, Any] = {"linestyle": "None", "markersize": 4.5}
PLAIN: dict[str, Any] = MARK | {"marker": "x", "color": GUIDE_COLOUR}


def draw(runs: Sequence[VllmRun], ours: Sequence[Error], fitted: Sequence[Error]) -> None:
    """Draw one panel for each figure: runs by model, nothing fitted and fitted to other models."""
    model_of = {run.name: run.model for run in runs}
    models = sorted(set(model_of.values()))
    style = {
        model: MARK | {"marker": "o", "color": colour}
        for model, colour in zip(models, _colours(len(models)), strict=True)
    }
    legend = [line_handle(model.split("/")[-1], **style[model]) for model in models]
    legend.append(line_handle("nothing fitted", **PLAIN))
    with figure(5.6, 2, 2) as (made, panels):
        for panel, (name, words) in zip(panels.flat, FIGURES.items(), strict=True):
            points = [error for error in fitted if error.figure == name and error.stage is None]
            for error in ours:
                if error.figure == name and error.stage is None:
                    panel.plot(error.measured, error.predicted, **PLAIN)
            for error in points:
                panel.plot(error.measured, error.predicted, **style[model_of[error.run]])
            _arrange(panel, [error.measured for error in points])
            panel.set(title=words, xlabel="measured (ms)", ylabel="predicted (ms)")
        save(made, PICTURE, TITLE, CAPTION, legend)


def _colours(count: int) -> list[str]:
    chosen = [*STRATEGY_COLOURS[1:], STRATEGY_COLOURS[0]]
    return [chosen[place % len(chosen)] for place in range(count)]


def _arrange(panel: Any, measured: Sequence[float]) -> None:
    """Both axes logarithmic, with plain numbers, and the line of equality."""
    ends = [min(measured) * 0.8, max(measured) * 1.25]
    panel.plot(ends, ends, color=GUIDE_COLOUR, linewidth=0.8, zorder=1)
    panel.set(xscale="log", yscale="log", xlim=ends)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_locator(NullLocator())
