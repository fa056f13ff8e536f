"""When affinity outvotes load: the ratio of the two weights against the inequality of the record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.routing_evolution.figures import BY_NAME
from papers.routing_evolution.figures.settings import OWN_TOKENS, PREFIXES

NAME = "weight_ratios"
BLOCK = 16  # tokens
PUBLISHED = 1.33
TAILS = {
    "worst_ttft_p99_ms": (style.ORANGE, "worst instance, the track's metric", "s"),
    "ttft_p99_ms": (style.BLACK, "all requests of the cluster", "o"),
}
# the reference's means of seeds 42, 123 and 7777, ms
EXPECTED = tuple(
    Expected({"policy": 512, "x": f"{ratio:g}", "metric": "ttft_p99_ms"}, value, 0.15)
    for ratio, value in ((4 / 3, 112.5), (3 / 2, 111.4), (5 / 4, 109.2), (2, 1957.8))
)


def bounds(prefix_tokens: int) -> tuple[float, float]:
    """Return the ratios from which on affinity outvotes load for the prompt that shares most, and for every prompt.

    A warm instance under the highest load is chosen before a cold one under the lowest if a·r > b, where
    a and b are the weights and r is the part of the prompt's blocks that the prefix fills.
    """
    least, most = OWN_TOKENS
    shared = prefix_tokens // BLOCK
    return (prefix_tokens + least) // BLOCK / shared, (prefix_tokens + most) // BLOCK / shared


def draw(data: Path, path: Path) -> None:
    """Draw a column for each length of the prefix: tails above, completed requests below."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    with style.figure(4.4, 2, len(PREFIXES), sharex=True, sharey="row") as (figure, panels):
        for place, (_, tokens) in enumerate(PREFIXES):
            above, below = panels[:, place]
            rows = table[table["policy"].astype(str) == str(tokens)]
            _draw_column(above, below, rows, tokens)
        panels[0][0].set_ylabel("TTFT P99 (ms)")
        panels[1][0].set_ylabel("completed requests (%)")
        caption = (
            "The track's compound (gate, priorities by class) on 8 instances, 1,000 requests in about 0.5 s, one "
            "prefix for all. A warm instance under the highest load is chosen before a cold one under the lowest "
            "if a·r > b (a, b: weights of prefix-affinity and queue-depth; r: share of the prompt that the prefix "
            "fills). Left of the band that is so for no prompt, right of it for every prompt: then one instance "
            "serves all, and the gate turns the rest away. The published limit of 1.33 fits the second: "
            f"it is needlessly low for the first and too high for the third. {num_seeds} seeds, "
            "requests by this simulator's generator; bars: 95 % interval of the mean."
        )
        title = "Affinity cascades where a·r > b holds, which no fixed ratio of weights says"
        legend = [
            *(
                style.line_handle(words, color=colour, marker=mark)
                for colour, words, mark in TAILS.values()
            ),
            style.area_handle("a·r > b for some prompts", color="0.88"),
            style.line_handle("published limit: 1.33", color=style.BLACK, linestyle=":"),
        ]
        style.save(figure, path, title, caption, legend)


def _draw_column(above: Any, below: Any, table: Any, tokens: int) -> None:
    for metric, (colour, _, mark) in TAILS.items():
        style.line(above, chosen(table, metric=metric), colour, marker=mark)
    rows = chosen(table, metric="completion_rate")
    rows = rows.assign(**{name: 100 * rows[name] for name in ("mean", "low", "high")})
    style.line(below, rows, style.BLACK)
    for panel in (above, below):
        panel.axvspan(*bounds(tokens), color="0.88", zorder=0, linewidth=0)
        panel.axvline(PUBLISHED, color=style.BLACK, linestyle=":", linewidth=1.2)
        style.plain_log(panel, "x", (0.5, 1, 2, 4))
    style.plain_log(above, "y", (100, 200, 500, 1000, 2000))
    below.set_ylim(0, 100)
    least, most = bounds(tokens)
    above.set_title(f"{100 / most:.0f} to {100 / least:.0f} % shared")
    below.set_xlabel("weight of affinity ÷ of load")


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
