"""Predicted against measured figures of held-out runs, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from papers.real_servers.designs import Error
from papers.real_servers.vllm import VllmRun

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "figures" / "real_servers.png"
FIGURES = {
    "itl_mean": "ITL mean",
    "e2e_mean": "E2E mean",
    "ttft_mean": "TTFT mean",
    "ttft_p99": "TTFT P99",
}


def draw(runs: Sequence[VllmRun], ours: Sequence[Error], fitted: Sequence[Error]) -> None:
    """One panel for each figure: runs by model, nothing fitted and fitted to other models."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    models = sorted({run.model for run in runs})
    model_of = {run.name: run.model for run in runs}
    picture, panels = plt.subplots(1, len(FIGURES), figsize=(14, 4.4))
    for panel, (name, words) in zip(panels, FIGURES.items(), strict=True):
        points = [one for one in fitted if one.figure == name and one.stage is None]
        plain = [one for one in ours if one.figure == name and one.stage is None]
        panel.scatter(
            [one.measured for one in plain],
            [one.predicted for one in plain],
            marker="x",
            color="0.6",
            linewidths=1,
            s=22,
            label="trained-physics, nothing fitted",
        )
        for number, model in enumerate(models):
            mine = [one for one in points if model_of[one.run] == model]
            panel.scatter(
                [one.measured for one in mine],
                [one.predicted for one in mine],
                color=f"C{number}",
                s=22,
                label=f"{model.split('/')[-1][:22]}, left out",
            )
        values = [one.measured for one in points]
        ends = [min(values) * 0.8, max(values) * 1.25]
        panel.plot(ends, ends, color="0.3", linewidth=0.8)
        panel.set(xscale="log", yscale="log", title=words, xlabel="measured, ms", xlim=ends)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_locator(NullLocator())
    panels[0].set_ylabel("predicted, ms")
    handles, labels = panels[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="lower center", ncols=4, fontsize=8, frameon=False)
    picture.tight_layout(rect=(0, 0.13, 1, 1))
    PICTURE.parent.mkdir(exist_ok=True)
    picture.savefig(PICTURE, dpi=110)
    plt.close(picture)
