"""The gain of the compound by the number of instances, at equal counts and at equal duration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.routing_evolution.figures import BY_NAME
from papers.routing_evolution.figures.settings import (
    COMPOUND,
    EQUAL_DURATION,
    PUBLISHED_COUNT,
    ROUND_ROBIN,
)

NAME = "cluster_sizes"
COLOURS = {ROUND_ROBIN: style.POLICY_COLOURS["baseline"], COMPOUND: style.POLICY_COLOURS["8-opt"]}
LOADS = {
    PUBLISHED_COUNT: "2,000 requests at every size",
    EQUAL_DURATION: "1 s of arrivals at every size",
}
PUBLISHED = {4: -83.5, 8: -69.6, 16: -51.2}  # change of the worst instance's P99, %
TAIL = "worst_ttft_p99_ms"
# the reference's means of seeds 42, 123 and 7777, ms
EXPECTED = tuple(
    Expected({"policy": policy, "x": place, "metric": TAIL}, value, 0.2)
    for policy, place, value in (
        ("round-robin", "published 4", 1460.5),
        ("round-robin", "published 8", 462.8),
        ("round-robin", "published 16", 266.3),
        ("compound", "published 16", 129.9),
        ("round-robin", "equal 4", 462.9),
        ("compound", "equal 4", 205.5),
        ("round-robin", "equal 16", 479.3),
        ("compound", "equal 16", 122.5),
    )
)


def draw(data: Path, path: Path) -> None:
    """Draw tails above and the gain below, one column per load."""
    table = read(data, NAME)
    num_seeds = int(table["num_seeds"].max())
    with style.figure(4.6, 2, 2, sharex=True, sharey="row") as (figure, panels):
        for column, (load, words) in enumerate(LOADS.items()):
            _draw_column(panels[:, column], style.at_load(table, load))
            panels[0][column].set_title(words)
            panels[1][column].set_xlabel("instances")
        sizes, gains = list(PUBLISHED), list(PUBLISHED.values())
        panels[1][0].plot(sizes, gains, "x", color=style.BLACK, markersize=8, zorder=6)
        panels[0][0].set_ylabel("TTFT P99 (ms)")
        panels[1][0].set_ylabel("change (%)")
        caption = (
            "ORTH at 250 requests/s an instance; P99 of the worst instance, the track's metric. Left, as published: "
            "4 instances take 2,000 requests in 2 s, 16 in 0.5 s, and at overload the tail grows with the "
            "duration. Right: as long a burst at every size. "
            f"{num_seeds} seeds, requests by this simulator's generator; bars: 95 % interval of the mean, in the "
            "lower row of the change paired by seed."
        )
        title = "The gain does not fall with the cluster once every size has as long a burst"
        handles = [
            style.line_handle("round-robin", color=COLOURS[ROUND_ROBIN], marker="o"),
            style.line_handle(
                "compound (4:3, gate, priorities)", color=COLOURS[COMPOUND], marker="o"
            ),
            style.line_handle("published", color=style.BLACK, marker="x", linestyle="none"),
        ]
        style.save(figure, path, title, caption, handles)


def _draw_column(panels: Any, table: Any) -> None:
    for policy, colour in COLOURS.items():
        style.line(panels[0], chosen(table, policy=policy, metric=TAIL), colour)
    changes = chosen(table, policy=COMPOUND, metric=f"{TAIL}_change_percent")
    style.line(panels[1], changes, COLOURS[COMPOUND])
    style.size_axes(panels[0], panels[1], 0)


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
