"""The staleness map: TTFT P99 against the age of what the router knows, by strategy and load.

Its runs are not among those of the record, which has no such workload: staleness_data.py makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.statistics.paired import WORSE
from papers import figure_style as style
from papers.record.figures import shows
from papers.routing_evolution.figures.staleness_answers import IN_FLIGHT, WORDS, compared, read
from papers.routing_evolution.figures.staleness_data import RATES, READS_NOTHING, STRATEGIES

if TYPE_CHECKING:
    import pandas as pd

COLOURS: Mapping[str, str] = {
    "round-robin": style.BLACK,
    "queue-depth": "#0072b2",
    "kv-utilization": style.SKY,
    "affinity 3, load 2": "#d55e00",
    "affinity 3, load 2, KV 2": style.ORANGE,
    "power of two": "#009e73",
}
NOTHING_READ: Mapping[str, Any] = {"linestyle": "--", "linewidth": 1.2, "marker": ""}
TICKS = (0, 1, 5, 20, 100, 500)
TITLE = (
    "Signals 1 or 2 ms old do no harm that shows; from 5 ms on TTFT P99 grows, up to 20-fold at 500 ms, with two "
    "random choices only 1.4-fold"
)
WIDTHS = {"affinity 3, load 2": 3.6}  # it lies under the line of another strategy
CAPTION = """
    8 instances with enough KV memory; 1,500 requests (Poisson; eight groups, each with a prefix of 512 tokens; 256 own
    prompt tokens and 128 output tokens in the mean); 8 seeds. Queue depths, batch sizes, KV use and the router's prefix
    index all have the age on the axis; each instance is looked at in times of its own. Upper row: requests sent to an
    instance and not yet in its queue are known at once; lower row: not at all. Bars: 95 % intervals of the mean over
    seeds. Worse: paired by seed against age 0, at 5 % with Holm's correction over the nine ages of a line.
"""
SAFE_MS = 5  # "safe below 5 ms", as recorded


@shows("papers.routing_evolution", "TTFT against the age of what the router knows")
def staleness_map(data: Path, path: Path) -> None:
    """Draw one panel for each load, once with requests in flight counted and once without."""
    comparison = compared(read(data / "staleness_map.csv"))
    with style.figure(5.2, 2, len(RATES), sharex=True, sharey=True) as (figure, panels):
        for row, counts in enumerate(IN_FLIGHT):
            for column, rate in enumerate(RATES):
                panel, here = panels[row, column], comparison[comparison["rate"] == rate]
                _panel(panel, here, counts)
                if row == 0:
                    panel.set_title(f"{rate} requests/s")
            panels[row, 0].set_ylabel(f"TTFT P99 (ms)\n{IN_FLIGHT[counts]}")
        for panel in panels[-1]:
            panel.set_xlabel("age of the signals (ms)")
        panels[0, 0].annotate(
            f"recorded\nas safe:\nbelow\n{SAFE_MS} ms", (0.05, 0.95), xycoords="axes fraction",
            fontsize=7.5, va="top", color="0.35",
        )  # fmt: skip
        style.save(figure, path, TITLE, CAPTION, _handles(), legend_columns=2)


def _line_of(name: str) -> dict[str, Any]:
    return dict(NOTHING_READ) if name in READS_NOTHING else {"linewidth": WIDTHS.get(name, 1.4)}


def _handles() -> list[Any]:
    lines = [
        style.line_handle(WORDS[name], color=COLOURS[name], **_line_of(name)) for name in STRATEGIES
    ]
    marks = {"no clear change against age 0": "white", "worse than at age 0": "0.2"}
    return lines + [
        style.line_handle(
            words, linestyle="none", marker="o", markerfacecolor=fill, markeredgecolor="0.2"
        )
        for words, fill in marks.items()
    ]


def _panel(panel: Any, here: pd.DataFrame, counts: bool) -> None:
    panel.axvspan(0, SAFE_MS, color="0.92", zorder=0)
    for name in STRATEGIES:
        cells, colour = here[here["strategy"] == name], COLOURS[name]
        if name in READS_NOTHING:
            for value in cells["mean"]:
                panel.axhline(value, color=colour, **NOTHING_READ)
            continue
        cells = cells[cells["counts_in_flight"] == counts].assign(x=lambda rows: rows["age_ms"])
        style.line(panel, cells, colour, marker="", linewidth=WIDTHS.get(name, 1.4), elinewidth=1.2)
        for verdicts, fill in (
            (cells["verdict"] == WORSE, colour),
            (cells["verdict"] != WORSE, "white"),
        ):
            panel.plot(
                cells["x"][verdicts], cells["mean"][verdicts], linestyle="none", marker="o",
                color=colour, markerfacecolor=fill, markersize=4, zorder=3,
            )  # fmt: skip
    panel.set_xscale("symlog", linthresh=1, linscale=0.4)
    panel.set_xticks(TICKS, [str(tick) for tick in TICKS])
    panel.set_xticks([], minor=True)
    panel.set_xlim(-0.25, 700)
    style.plain_log(panel, "y", (30, 100, 300, 1000))
