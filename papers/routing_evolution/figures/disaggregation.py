"""Prefill and decode apart: as published, and with instances that compute one step at a time."""

from __future__ import annotations

import sys
from pathlib import Path

from papers import figure_style as style
from papers.record.figures import Expected, chosen, draw_one, read
from papers.routing_evolution.figures import BY_NAME
from papers.routing_evolution.figures.settings import PREFILL2, PREFILL4, SERIAL, SHARED, SHARED_ALL

NAME = "disaggregation"
LINES = {
    SHARED: (style.POLICY_COLOURS["baseline"], "-", "8 shared instances, 5,000 blocks each"),
    SHARED_ALL: (style.POLICY_COLOURS["baseline"], "--", "8 shared instances, 132,139 blocks each"),
    PREFILL4: (style.POLICY_COLOURS["8-opt"], "-", "4 instances for prefill alone"),
    PREFILL2: (style.POLICY_COLOURS["8-opt"], "--", "2 instances for prefill alone"),
}
PANELS = {"": "as published: steps overlap", SERIAL: "one step at a time, no lost blocks"}
# the reference's means of seeds 42, 123 and 7777, ms
EXPECTED = tuple(
    Expected({"policy": policy, "x": rate, "metric": "worst_ttft_p99_ms"}, value, 1e-3)
    for policy, rate, value in (
        (SHARED, 100, 46.59),
        (SHARED, 200, 51.17),
        (SHARED, 400, 7839.83),
        (PREFILL4, 400, 32.01),
        (PREFILL2, 400, 22.96),
        (PREFILL4 + SERIAL, 400, 771.9),
    )
)


def draw(data: Path, path: Path) -> None:
    """Draw TTFT P99 against the rate, one panel per way of computing steps."""
    table = read(data, NAME)
    with style.figure(3.1, 1, len(PANELS), sharey=True) as (figure, panels):
        for panel, (suffix, words) in zip(panels[0], PANELS.items(), strict=True):
            for policy, (colour, kind, _) in LINES.items():
                rows = chosen(table, policy=policy + suffix, metric="worst_ttft_p99_ms")
                style.line(panel, rows, colour, linestyle=kind)
            panel.set_title(words)
            panel.set_xlabel("arrival rate (requests/s)")
            panel.set_xticks((100, 200, 300, 400))
            panel.set_xlim(80, 420)
            style.plain_log(panel, "y", (20, 50, 100, 200, 500, 1000, 2000, 5000, 10000))
        panels[0][0].set_ylabel("TTFT P99 (ms)")
        caption = (
            "GROUPS-8: prompts of 1,024 tokens, half of them shared in one of eight groups; 10 s, 4:3 routing; P99 of "
            "the worst instance. A pool for prefill gets the same prompts with one token to make. In BLIS such "
            "a request ends in its prefill step, after which the instance counts as idle from the step's start: "
            "it computes any number of steps in parallel. And the shared instances run out of their 5,000 blocks at "
            "400 requests/s. Seeds 42, 123 and 7777 with BLIS's own requests; bars: 95 % interval of the mean."
        )
        title = "A pool for prefill gains by parallel steps and by exhausted caches; without them it loses"
        legend = [
            style.line_handle(words, color=colour, linestyle=kind, marker="o")
            for colour, kind, words in LINES.values()
        ]
        style.save(figure, path, title, caption, legend)


if __name__ == "__main__":
    sys.exit(draw_one(BY_NAME[NAME]))
