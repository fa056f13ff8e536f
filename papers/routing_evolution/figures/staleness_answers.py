"""What the staleness map answers: from which age on a strategy is worse than with new signals, and which signal it is.

python -m papers.routing_evolution.figures.staleness_answers        prints the tables, from saved data
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.commands.options import CommandOptions
from blis_jax.lazy import pandas as pd
from blis_jax.reports import style
from blis_jax.reports.render import row_line, table_lines
from blis_jax.statistics.intervals import BY_STUDENT, Estimate, estimate
from blis_jax.statistics.paired import WORSE, Difference, Pair, differences
from papers.record.figures import FigureWords, draw_line, shows
from papers.routing_evolution.figures.staleness_data import (
    ALL,
    DATA,
    METRIC,
    ONE_AGE_MS,
    RATES,
    READS_EVERYTHING,
    READS_NOTHING,
    SIGNALS,
    STRATEGIES,
)

NAME = "papers.routing_evolution.figures.staleness_answers"
WORDS: Mapping[str, str] = {
    "round-robin": "round robin: reads nothing",
    "queue-depth": "least load (scorer queue-depth)",
    "kv-utilization": "most free KV (kv-utilization)",
    "affinity 3, load 2": "prefix affinity 3, load 2",
    "affinity 3, load 2, KV 2": "prefix affinity 3, load 2, KV 2",
    "power of two": "power of two choices by load",
}
IN_FLIGHT: Mapping[bool, str] = {True: "in-flight requests count", False: "snapshots alone"}
LINE = ["strategy", "signal", "counts_in_flight", "rate"]


def read(path: Path = DATA) -> pd.DataFrame:
    """Read the saved cells, with an array of the metric by seed in `values`."""
    return _with_values(pd.read_csv(path))


def _with_values(table: pd.DataFrame) -> pd.DataFrame:
    values = [np.array(text.split(), float) for text in table[f"{METRIC} by seed"].astype(str)]
    return table[[*LINE, "age_ms"]].assign(values=values)


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """Return every cell with its mean, its change against age 0 on the same seeds, and a verdict that holds for all
    ages together.

    Intervals are 95 % by Student's t over seeds; those of changes hold for all ages of a line together.
    """
    rows = []
    for line, cells in table[table["signal"] == ALL].groupby(LINE, sort=False):
        fresh = cells.loc[cells["age_ms"] == 0, "values"].iloc[0]
        old = cells[cells["age_ms"] > 0]
        judged = differences([Pair(fresh, values) for values in old["values"]], BY_STUDENT)
        changes = dict(zip(old["age_ms"], judged, strict=True))
        for age, values in zip(cells["age_ms"], cells["values"], strict=True):
            mean, change = estimate(values), changes.get(age)
            row = {"age_ms": age, "mean": mean.mean, "low": mean.low, "high": mean.high}
            if change is not None:
                percent = change.simultaneous_percent
                row |= {"percent": percent.mean, "percent_low": percent.low}
                row |= {"percent_high": percent.high, "verdict": change.verdict}
            rows.append(dict(zip(LINE, line, strict=True)) | row)
    return pd.DataFrame(rows)


def first_losses(comparison: pd.DataFrame) -> pd.DataFrame:
    """Return for every line the least age in ms from which on all are worse than age 0; infinity if none is."""
    rows = []
    for line, cells in comparison.groupby(LINE, sort=False):
        first = np.inf
        for age, verdict in zip(cells["age_ms"][::-1], cells["verdict"][::-1], strict=True):
            if verdict != WORSE:
                break
            first = age
        rows.append(dict(zip(LINE, line, strict=True)) | {"first_ms": first})
    table = pd.DataFrame(rows)
    return table[~table["strategy"].isin(READS_NOTHING)]


def pooled(table: pd.DataFrame) -> dict[int, Estimate]:
    """Return the change in % at each age, over all strategies and loads where in-flight requests count.

    Each seed counts with the mean logarithm of its ratios to age 0; the 95 % interval is Student's t over seeds.
    """
    cells = table[(table["signal"] == ALL) & table["counts_in_flight"]]
    cells = cells[~cells["strategy"].isin(READS_NOTHING)]
    wide = cells.pivot(index=["strategy", "rate"], columns="age_ms", values="values")
    logs = {age: np.log(np.stack(list(wide[age]))) for age in wide.columns}
    changes = {age: (logs[age] - logs[0]).mean(axis=0) for age in wide.columns if age > 0}
    return {
        age: estimate(change).through(lambda logarithm: 100 * float(np.expm1(logarithm)))
        for age, change in changes.items()
    }


def one_signal_old(table: pd.DataFrame) -> list[tuple[str, int, Difference]]:
    """Return for each load, and for each signal and all of them, the change where only that signal is old."""
    rows = []
    cells = table[(table["strategy"] == READS_EVERYTHING) & table["counts_in_flight"]]
    for rate in RATES:
        here = cells[cells["rate"] == rate]
        fresh = here.loc[here["age_ms"] == 0, "values"].iloc[0]
        old = here[here["age_ms"] == ONE_AGE_MS].set_index("signal")["values"]
        names = [*SIGNALS, ALL]
        changes = differences([Pair(fresh, old[name]) for name in names], BY_STUDENT)
        rows += [(name, rate, change) for name, change in zip(names, changes, strict=True)]
    return rows


def tables(table: pd.DataFrame) -> str:
    """Write three tables in Markdown: harm by age, from which age on each line is worse, and harm of
    one signal alone.
    """
    comparison, all_lines = compared(table), pooled(table)
    ages = table_lines(["age", "lines clearly worse", "all lines together"], ())
    for age, change in all_lines.items():
        verdicts = comparison.loc[comparison["age_ms"] == age, "verdict"]
        ages.append(
            row_line(
                [f"{age} ms", f"{sum(verdicts == WORSE)} of {len(verdicts)}", _percent(change)]
            )
        )
    first = first_losses(comparison).set_index(["strategy", "counts_in_flight", "rate"])
    head = [f"{rate}/s, {words}" for words in IN_FLIGHT.values() for rate in RATES]
    rows = table_lines(["strategy", *head], ())
    for name in dict.fromkeys(first.index.get_level_values(0)):
        begins = [first["first_ms"][name, counts, rate] for counts in IN_FLIGHT for rate in RATES]
        words = (f"{age:g} ms" if np.isfinite(age) else "none measured" for age in begins)
        rows.append(row_line([WORDS[name], *words]))
    signals = table_lines(["old signal", *(f"{rate}/s" for rate in RATES)], ())
    changes_of = {(name, rate): change for name, rate, change in one_signal_old(table)}
    for name in [*SIGNALS, ALL]:
        changes = [changes_of[name, rate].simultaneous_percent for rate in RATES]
        signals.append(row_line([name, *map(_percent, changes)]))
    return "\n\n".join("\n".join(lines) for lines in (ages, rows, signals))


def _percent(change: Estimate) -> str:
    return f"{change.mean:+.1f} % [{change.low:+.1f}, {change.high:+.1f}]"


class TablesOptions(
    CommandOptions, command=NAME, description="Print what the staleness map says."
):  # fmt: skip
    """Options of the command: none."""


@TablesOptions.as_main
def main(options: TablesOptions) -> int:
    """Run the command; return its exit code."""
    print(tables(read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())


# --- the staleness map ---------------------------------------------------------------------------


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


@shows(
    "papers.routing_evolution", "TTFT against the age of what the router knows", (5.2, 2, len(RATES)),
    sharex=True, sharey=True,
)  # fmt: skip
def staleness_map(panels: Any, table: pd.DataFrame) -> FigureWords:
    """Draw one panel for each load, once with requests in flight counted and once without."""
    comparison = compared(_with_values(table))
    for row, counts in zip(panels, IN_FLIGHT, strict=True):
        for panel, rate in zip(row, RATES, strict=True):
            _panel(panel, comparison[comparison["rate"] == rate], counts)
        row[0].set_ylabel(f"TTFT P99 (ms)\n{IN_FLIGHT[counts]}")
    for (above, below), rate in zip(panels.T, RATES, strict=True):
        above.set_title(f"{rate} requests/s")
        below.set_xlabel("age of the signals (ms)")
    panels[0, 0].annotate(
        f"recorded\nas safe:\nbelow\n{SAFE_MS} ms", (0.05, 0.95), xycoords="axes fraction",
        fontsize=7.5, va="top", color="0.35",
    )  # fmt: skip
    return FigureWords(TITLE, CAPTION, _handles(), 2)


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
        draw_line(panel, cells, colour, marker="", linewidth=WIDTHS.get(name, 1.4), elinewidth=1.2)
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
